/** A block cache's last answer about one chain: right while nothing changes, near the next one after that. */
export class KnownPrefix {
  /** Changes of the cache when it was asked. */
  changes = -1;
  /** Blocks it was asked for, and what it said. */
  asked = 0;
  blocks = 0;
}
