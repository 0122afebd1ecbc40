// One request of a workload, and the error of a line that is none.

export interface TraceRequest {
  /** Place in the trace, from 0. */
  readonly index: number;
  /** From the start of the trace; never descends. */
  readonly arrivalUs: number;
  /** At least 1. */
  readonly inputTokens: number;
  /** At least 1. */
  readonly outputTokens: number;
  /**
   * (ceil(inputTokens / blockTokens)): ids of the prompt's blocks, root to leaf. Equal ids are equal blocks behind equal prefixes; the
   * last block may be partial. Empty: unknown, so that nothing is shared.
   */
  readonly blocks: Int32Array;
  /** Ids of the blocks that its output completes, where those are known: they stay cached as the prompt's do. */
  readonly outputBlocks?: Int32Array;
  /** By name: what it may wait. */
  readonly sloClass?: string;
  /** Who sent it. */
  readonly tenant?: string;
  /** Larger runs first; 0 unless given. */
  readonly priority?: number;
  /** No request: the full blocks of its prompt are to be kept for so long. */
  readonly pinUs?: number;
  /** A batch job: nobody waits for it. */
  readonly batch?: boolean;
}

/** A line that cannot be a request: names line, field and value. */
export class TraceError extends Error {
  constructor(line: number, why: string) {
    super(`Cannot read the trace: line ${line}: ${why}`);
    this.name = 'TraceError';
  }
}

/** A value as an error shows it: short, whatever it is. */
export function shown(value: unknown): string {
  const text = value === undefined ? 'missing' : (JSON.stringify(value) ?? String(value));
  return text.length > 40 ? `${text.slice(0, 40)}...` : text;
}
