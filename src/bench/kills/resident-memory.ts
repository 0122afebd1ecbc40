// Resident memory of the processes of a cluster over time: its peak by role until it has settled, and after that.

export interface MemoryGrowth {
  /** Largest resident memory of a process of this role, in bytes: in the second half of the time to settle, and after it. */
  readonly settledBytes: number;
  readonly laterBytes: number;
  /** The same at the last observation. */
  readonly endBytes: number;
  /** Of `laterBytes` over `settledBytes`, less 1. */
  readonly growth: number;
}

/** Processes restart, so that the figures are those of a role: a process that grows raises the peak of its role. */
export class ResidentMemory {
  readonly #settleMs: number;
  readonly #startMs: number;
  readonly #settled = new Map<string, number>();
  readonly #later = new Map<string, number>();
  #end = new Map<string, number>();

  constructor(settleMs: number, startMs: number) {
    this.#settleMs = settleMs;
    this.#startMs = startMs;
  }

  observe(nowMs: number, processes: readonly (readonly [role: string, bytes: number])[]): void {
    const ageMs = nowMs - this.#startMs;
    if (ageMs < 0.5 * this.#settleMs) return;
    this.#end = new Map();
    for (const peaks of [ageMs < this.#settleMs ? this.#settled : this.#later, this.#end])
      for (const [role, bytes] of processes) peaks.set(role, Math.max(peaks.get(role) ?? 0, bytes));
  }

  /** By role. */
  growth(): Readonly<Record<string, MemoryGrowth>> {
    const roles = [...this.#later].flatMap(([role, laterBytes]) => {
      const settledBytes = this.#settled.get(role);
      if (settledBytes === undefined) return [];
      const growth = Math.round(1000 * (laterBytes / settledBytes - 1)) / 1000;
      return [[role, { settledBytes, laterBytes, endBytes: this.#end.get(role) ?? 0, growth }] as const];
    });
    return Object.fromEntries(roles);
  }
}
