/** The last answer of a block cache about one chain: exact until the cache changes, and a good guess after that. */
export class KnownPrefix {
  /** `BlockCache.changes` at the time of the answer. */
  changes = -1;
  /** Blocks asked for, and the answer. */
  asked = 0;
  blocks = 0;
}
