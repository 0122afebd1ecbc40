// Counters of page transfers, SSD reads and remote attention: counted beside the kernels, reported by instances.

/** Pages that a messenger has copied. */
export interface SentPages {
  readonly pages: number;
  readonly bytes: number;
  /** Bytes that were sent while a step ran, and so hidden behind it. */
  readonly earlyBytes: number;
  /** Started streams, and the sum of the pages that were ready when each stream sent its first. */
  readonly streams: number;
  readonly firstPages: number;
  readonly copySeconds: number;
}

export interface MessengerCounts extends SentPages {
  /** Connections that broke, were refused or were given up; always 0 within a process. */
  readonly faults: number;
}

/** Work of a remote attention server for debtors. */
export interface RemoteAttentionCounts {
  /** Answered queries: of one sequence in one layer each. */
  readonly queries: number;
  /** Query rows of these. */
  readonly rows: number;
  /** Queries for blocks that are not lent, or lent under other terms. */
  readonly refused: number;
  /** Compute time over all threads. */
  readonly seconds: number;
  /** Time that queries waited so that remote attention keeps to its share. */
  readonly restSeconds: number;
  /** Query rows received, partial results sent. */
  readonly bytesIn: number;
  readonly bytesOut: number;
}

/** Remote attention that steps have requested. */
export interface RemoteCounts {
  readonly queries: number;
  /** Query rows sent, partial results received. */
  readonly bytesOut: number;
  readonly bytesIn: number;
  /** Time that steps waited for partial results after their own part. */
  readonly waitSeconds: number;
  /** Keys and values that steps read at creditors instead of sending rows; undefined: none. */
  readonly keyBytes?: number | undefined;
}

/** Work of an attention worker for model workers. */
export interface AttentionWorkerCounts {
  readonly steps: number;
  /** Attention of one layer in one step. */
  readonly calls: number;
  /** Query rows of all calls. */
  readonly rows: number;
  /** Calls of which a part was computed before K and V of the step arrived. */
  readonly earlyCalls: number;
  /** Compute time before K and V of the step arrived, and after. */
  readonly earlySeconds: number;
  readonly lateSeconds: number;
  /** Time between the frames of a step. */
  readonly idleSeconds: number;
  /** Block lists, query rows, K and V received; results sent. */
  readonly bytesIn: number;
  readonly bytesOut: number;
  /** Connections that ended in a frame, with an invalid frame, or without memory for one. */
  readonly broken: number;
  /** Connections of another process while links of the owner of the pages were open. */
  readonly refused: number;
  /** Sent while calls waited for their results. */
  readonly heartbeats: number;
  /** Pages of prompts that other instances computed. */
  readonly pulledPages: number;
  /** Times that a pull waited for attention calls. */
  readonly pullYields: number;
}

/** A model worker's traffic with one attention worker. */
export interface WorkerLinkCounts {
  readonly calls: number;
  readonly bytesOut: number;
  readonly bytesIn: number;
  /** Time that steps waited for results after their own part. */
  readonly waitSeconds: number;
  /** Compute time of the attention worker for this model worker, before K and V of a step arrived and after. */
  readonly earlySeconds: number;
  readonly lateSeconds: number;
}

/** Transfers of an SSD block store. */
export interface StoreCounts {
  readonly readBytes: number;
  readonly writtenBytes: number;
  /** Blocks that failed their check when read. */
  readonly badBlocks: number;
  readonly failedWrites: number;
  /** Time of reads, including failed ones. */
  readonly readSeconds: number;
  /** System error of the last failed write; empty: none. */
  readonly error: string;
}
