// What moving pages, reading SSD and computing for others comes to: counted beside the kernels, told by instances.

/** What a messenger has copied. */
export interface SentPages {
  readonly pages: number;
  readonly bytes: number;
  /** Of them, those that left while a step ran: hidden behind it. */
  readonly earlyBytes: number;
  /** Streams that have begun, and the pages that could have left when the first of each did, all together. */
  readonly streams: number;
  readonly firstPages: number;
  readonly copySeconds: number;
}

export interface MessengerCounts extends SentPages {
  /** Connections that broke, were refused or given up; always 0 inside a process. */
  readonly faults: number;
}

/** What a guest room has done for debtors. */
export interface GuestCounts {
  /** Answered: of one sequence in one layer each. */
  readonly queries: number;
  /** Query rows of these. */
  readonly rows: number;
  /** For blocks that are not lent, or not as the debtor believes. */
  readonly refused: number;
  /** Of computing, over all threads. */
  readonly seconds: number;
  /** That queries waited so that guests keep to their share. */
  readonly restSeconds: number;
  /** Query rows in, partials out. */
  readonly bytesIn: number;
  readonly bytesOut: number;
}

/** What steps have asked of rooms. */
export interface RemoteCounts {
  readonly queries: number;
  /** Query rows out, partials in. */
  readonly bytesOut: number;
  readonly bytesIn: number;
  /** That steps waited for partials after their own part was done. */
  readonly waitSeconds: number;
}

/** What a store of blocks on SSD has moved. */
export interface StoreCounts {
  readonly readBytes: number;
  readonly writtenBytes: number;
  /** Blocks that were to be read and were not whole. */
  readonly badBlocks: number;
  readonly failedWrites: number;
  /** Spent reading, what was read in vain included. */
  readonly readSeconds: number;
  /** What the system said when a block could not be written last; empty: nothing. */
  readonly error: string;
}
