// A fuzz target: numbered cases, each a function of the seed and its number.

export interface Fault {
  readonly index: number;
  readonly seedName: string;
  readonly why: string;
}

export interface FuzzTarget {
  /** Cases by their outcome. */
  readonly outcomes: Readonly<Record<string, number>>;
  /** Checks the unchanged seeds: a target that refuses valid input would hide faults. */
  checkSeeds(): readonly Fault[] | Promise<readonly Fault[]>;
  /** undefined: the case was handled correctly. */
  run(index: number): Fault | undefined | Promise<Fault | undefined>;
  close(): void;
}
