// The interface of the compiled addon, and loading it.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import type {
  AttentionWorkerCounts,
  RemoteAttentionCounts,
  RemoteCounts,
  SentPages,
  StoreCounts,
  WorkerLinkCounts,
} from '../../util/counts.ts';
import { encodingVersion } from '../encode.ts';
import { addonPath } from './platform-package.ts';

/** The attention worker of a link: threads, form of its pages, and address. */
export type WorkerLinkArguments = readonly [
  ...[backend: number, kvType: number, kvHeads: number, headDim: number],
  ...[
    host: string,
    port: number,
    transport: number,
    key: Uint8Array,
    deadlineMs: number,
    form: number,
    firstPage: number,
  ],
];

/** The functions that native/addon/ binds. Handles are integers, valid in every thread of the process. */
export interface NativeModule {
  readonly encodingVersion: number;
  detectIsa(): number;
  createBackend(isa: number, threads: number): number;
  freeBackend(backend: number): void;
  memoryInfo(): MemoryInfo;
  /**
   * Returns freed memory that `malloc` keeps to the system, in the arenas of all threads. Does nothing without glibc.
   */
  trimHeap(): void;
  createLinear(backend: number, columns: number, types: Int32Array, rows: Int32Array, inputs: number): number;
  packRows(linear: number, segment: number, firstRow: number, rows: number, bytes: Uint8Array): void;
  linearBytes(linear: number): number;
  freeLinear(linear: number): void;
  createVector(values: Float32Array): number;
  freeVector(vector: number): void;
  createPool(
    backend: number,
    kvType: number,
    kvHeads: number,
    headDim: number,
    pages: number,
    atWorkers: number,
  ): number;
  /** Opens the pool of another process of the same user by its name there. */
  openPool(backend: number, name: string): number;
  poolName(pool: number): string;
  /** Count of numbers in the canonical form of a page. */
  pageValues(pool: number): number;
  readPage(pool: number, page: number, out: Float32Array): void;
  writePage(pool: number, page: number, values: Float32Array): void;
  /** States in one page of slot states: slots times KV heads. */
  slotStates(pool: number): number;
  /** Reads a page of slot states, (KV heads, slots) each. */
  readSlotStates(pool: number, page: number, scores: Float32Array, positions: Int32Array): void;
  /** Writes consecutive float32 rows, in the form of `Step.rowsOut`. */
  writeRows(pool: number, pages: Int32Array, values: Float32Array): void;
  freePool(pool: number): void;
  /** `wake` is called in this thread when receive buffers are complete. */
  createCompletionQueue(pool: number, wake: () => void): number;
  freeCompletionQueue(queue: number): void;
  /** Arrival counters of (blocks, layers) pages in transfer, for steps that wait for their layers. */
  createArrivals(layers: number, blocks: number): number;
  /** Only the first `blocks` blocks arrive. */
  expectBlocks(arrivals: number, blocks: number): void;
  freeArrivals(arrivals: number): void;
  /** `arrivals` 0: no step waits for its layers. */
  openReceiveBuffer(queue: number, pages: Int32Array, arrivals: number): number;
  closeReceiveBuffer(buffer: number): void;
  takeCompleted(queue: number, out: Int32Array): number;
  createLocalSender(pool: number): number;
  freeLocalSender(sender: number): void;
  nextStep(pool: number): number;
  sendPages(sender: number, buffer: number, step: number, descriptors: Int32Array, last: number): boolean;
  stopSending(sender: number, buffer: number): void;
  pendingPages(sender: number, buffer: number): number;
  localSenderCounts(sender: number): SentPages;
  /** Blocks of `pagesOfBlock` pages on SSD, at `path`. `wake` is called in this thread when there are results. */
  createStore(
    pool: number,
    pagesOfBlock: number,
    path: string,
    slots: number,
    identity: Uint8Array,
    wake: () => void,
  ): number;
  freeStore(store: number): void;
  storeNote(store: number): string;
  /** (blocks, 6): slot, depth, digest. */
  storeBlocks(store: number): Uint32Array;
  /** `kind`: 0 read, 1 write, 2 erase. `blocks` (n, 7): slot, page, depth, digest. */
  beginStoreJob(store: number, job: number, kind: number, blocks: Uint32Array): void;
  /** Layer by layer to `pages` (n, pages of a block). `blocks` as those of `beginStoreJob`, without their pages. */
  beginStoreLayers(store: number, job: number, blocks: Uint32Array, pages: Int32Array, arrivals: number): void;
  stopStoreJob(store: number, job: number): void;
  /** `out` (n, 2): job, blocks done. */
  takeStoreResults(store: number, out: Int32Array): number;
  storeCounts(store: number): StoreCounts;
  /** Copies blocks inside a pool while steps run over it. */
  createLoader(pool: number): number;
  freeLoader(loader: number): void;
  /** Both lists are (blocks, layers) pages. A running step waits for each layer. */
  beginLoading(loader: number, layers: number, from: Int32Array, to: Int32Array): void;
  /** Returns once all loads are complete. */
  finishLoading(loader: number): void;
  /** As `beginLoading`: copies what the next step computes, each layer once it is computed. */
  beginStoring(loader: number, layers: number, from: Int32Array, to: Int32Array): void;
  /** Called after the step: returns once all layers that it has computed are copied. */
  finishStoring(loader: number): void;
  /** Pages copied while the step that computed them ran. */
  pagesStoredEarly(loader: number): number;
  copyPages(pool: number, from: Int32Array, to: Int32Array): void;
  /** Listens at `host` and `port`; the key has 32 bytes. */
  createReceiver(pool: number, host: string, port: number, transport: number, key: Uint8Array): number;
  receiverPort(receiver: number): number;
  /** Returns the key that senders to the buffer must present, in hexadecimal. */
  registerReceiveBuffer(receiver: number, buffer: number): string;
  receiverCounts(receiver: number): ReceiverCounts;
  freeReceiver(receiver: number): void;
  createRemoteSender(pool: number, transport: number, key: Uint8Array, frameBytes: number, giveUpMs: number): number;
  /** As `sendPages`; `filling` lists the pages that may be written while they are sent. */
  sendPagesRemote(
    ...send: readonly [...RemoteTarget, step: number, descriptors: Int32Array, last: number, filling: Int32Array]
  ): void;
  stopSendingRemote(...target: RemoteTarget): void;
  pendingPagesRemote(...target: RemoteTarget): number;
  /** The name of the RDMA device over which processes can connect. @throws Error with the reason if there is none */
  rdmaDevice(): string;
  /** A code of `transportCodes`; that of 'auto' before the first connection. */
  transportTo(sender: number, host: string, port: number): number;
  /** Addresses of receive buffers given up since the last call: HOST:PORT/NUMBER/KEY/SLOTS. */
  takeGivenUp(sender: number): readonly string[];
  remoteSenderCounts(sender: number): RemoteSenderCounts;
  freeRemoteSender(sender: number): void;
  /** Seconds in which a plain socket loop moves the first `pages` from one pool to another of the same shape. */
  benchSockets(from: number, to: number, chunkBytes: number, pages: number, readerCores: Int32Array): number;
  /** Cores that this thread may run on; empty if unknown. */
  allowedCores(): readonly number[];
  /** Pins this thread, and the threads it starts, to these cores. */
  setThreadAffinity(cores: Int32Array): void;
  createRemoteAttentionServer(backend: number, pool: number): number;
  /** A reader of the lent pages of a server, or of a client's server, with the threads of the debtor's `backend`. */
  createRemotePageReader(backend: number, server: number): number;
  freeRemoteAttention(endpoint: number): void;
  /** Listens at `host` and `port`; the key has 32 bytes. */
  openRemoteAttentionListener(server: number, host: string, port: number, transport: number, key: Uint8Array): number;
  remoteAttentionListenerPort(listener: number): number;
  closeRemoteAttentionListener(listener: number): void;
  createRemoteAttentionClient(pool: number, host: string, port: number, transport: number, key: Uint8Array): number;
  lendBlocks(server: number, loan: number, blocks: Int32Array, pages: Int32Array): void;
  takeBackBlocks(server: number, loan: number, blocks: Int32Array): void;
  setRemoteAttentionShare(server: number, loan: number, thousandths: number): void;
  remoteAttentionServerCounts(server: number): RemoteAttentionCounts;
  /** Counts of one loan's queries. */
  remoteAttentionLoanCounts(server: number, loan: number): RemoteAttentionCounts;
  remoteCounts(backend: number): RemoteCounts;
  /** `host` and `port` to listen at; 32 bytes of key. */
  createAttentionWorker(
    ...worker: readonly [
      ...[backend: number, pool: number, host: string, port: number, transport: number, key: Uint8Array],
      overlaps: number,
    ]
  ): number;
  attentionWorkerPort(worker: number): number;
  attentionWorkerCounts(worker: number): AttentionWorkerCounts;
  /** Queues a pull of a shard of pages of `pool`. @param pages (n, 2): page of the pool, page of the worker @returns its number */
  pullPages(worker: number, pool: number, shard: number, pages: Int32Array): number;
  /** Pulls a shard of each slot that a buffer receives. @param pages (slots): of the worker @returns its number */
  pullReceived(worker: number, receiveBuffer: number, shard: number, pages: Int32Array): number;
  isPulled(worker: number, pull: number): boolean;
  /** When it returns, nothing more of the pull is written. */
  cancelPull(worker: number, pull: number): void;
  freeAttentionWorker(worker: number): void;
  /** Connects to the attention worker at the address. */
  openWorkerLink(...link: WorkerLinkArguments): number;
  /** Begins to connect in a thread of its own: an attempt, until it has ended. */
  beginWorkerLink(...link: WorkerLinkArguments): number;
  /** 0 while the attempt lasts. @throws if it has failed */
  pollWorkerLink(attempt: number): number;
  workerLinkPages(link: number): number;
  workerLinkBroken(link: number): boolean;
  workerLinkCounts(link: number): WorkerLinkCounts;
  closeWorkerLink(link: number): void;
  /** Sends pages to the attention worker of a link that has no steps. */
  createShardSender(link: number): number;
  precedeSteps(sender: number, link: number): void;
  /** Queues a shard of pages of `pool`. @param pages (n, 2): page of the pool, page of the worker @returns number of the pull */
  sendShard(sender: number, pool: number, shard: number, pages: Int32Array): number;
  /** Sends a shard of each slot that a buffer receives. @param pages (slots): of the worker @returns number of the pull */
  sendReceivedShard(sender: number, receiveBuffer: number, shard: number, pages: Int32Array): number;
  isShardSent(sender: number, pull: number): boolean;
  /** Pages that the worker has stored. */
  shardPagesSent(sender: number): number;
  /** When it returns, the worker writes nothing more of the pull. */
  cancelShard(sender: number, pull: number): void;
  freeShardSender(sender: number): void;
  createProgram(
    backend: number,
    ints: Int32Array,
    floats: Float64Array,
    ...bound: readonly (Int32Array | number)[]
  ): number;
  freeProgram(program: number): void;
  programBytes(program: number): number;
  /** `steps`: a program and its step for each entry of `done`, which becomes 1 unless the step was aborted. */
  run(
    ...run: readonly [
      ...[pool: number, abort: Int32Array, done: Uint8Array, replicas: Int32Array, turns: Int32Array],
      ...steps: readonly (number | ArrayBufferView)[],
    ]
  ): void;
  bufferColumns(program: number, buffer: number): number;
  readBuffer(program: number, buffer: number, rows: number, out: Float32Array): void;
  writeBuffer(program: number, buffer: number, rows: number, values: Float32Array): void;
  /** Bytes per second of reading contiguous memory on huge pages. */
  readRoof(backend: number, mebibytes: number, repetitions: number): number;
  /** Operations per second of the instruction that attention multiplies with. */
  attentionPeak(backend: number, kvType: number): number;
  /** Operations per second of the instruction that linear layers multiply with. */
  productPeak(backend: number, inputs: number): number;
  benchDecode(
    ...numbers: readonly number[]
  ): { readonly seconds: number; readonly bytes: number; readonly sequences: number } & NativeSplit;
  benchScoring(...numbers: readonly number[]): { readonly seconds: number; readonly attentionSeconds: number };
  benchPrefill(...numbers: readonly number[]): { readonly seconds: number; readonly operations: number } & NativeSplit;
}

/**
 * How processes connect: 'auto' over shared memory if both are on one host, else over TCP; 'rdma' over RDMA if both
 * have a device, else over TCP.
 */
export type Transport = 'auto' | 'tcp' | 'shared' | 'rdma';
/** `Transport` of native/net/connection.hpp. */
export const transportCodes: Readonly<Record<Transport, number>> = { auto: 0, tcp: 1, shared: 2, rdma: 3 };

export interface RemoteSenderCounts extends SentPages {
  /** Connections that ended with unacknowledged frames, which were sent again. */
  readonly broken: number;
  /** Times that a receiver was unreachable for so long that its pages were given up. */
  readonly givenUp: number;
}

/** A receive buffer of another process: sender, host, port, number, key, slots. */
export type RemoteTarget = readonly [number, string, number, number, string, number];

/** Counts of received frames and connections. */
export interface ReceiverCounts {
  readonly pages: number;
  readonly bytes: number;
  /** Frames to closed or unknown buffers, or stopped while they were sent. */
  readonly late: number;
  /** Connections that did not prove the key. */
  readonly refused: number;
  /** Connections closed because of invalid frames. */
  readonly broken: number;
}

/** The work split of attention: `AttentionSplit` of native/attention/attention.hpp. */
export interface NativeSplit {
  readonly tileTokens: number;
  readonly groupRanges: number;
  readonly tasks: number;
  readonly merges: number;
}

export interface MemoryInfo {
  readonly residentBytes: number;
  readonly residentPeakBytes: number;
  /** Resident and not backed by a file; 0 if unknown. */
  readonly anonymousBytes: number;
  /** To this process: of the machine and of its control group. */
  readonly availableBytes: number;
}

export type NativeLoad =
  | { readonly kind: 'loaded'; readonly native: NativeModule }
  /** `why` is one line of text for the user. */
  | { readonly kind: 'absent'; readonly why: string };

/** Loads the compiled kernels; absent if they are not compiled, or belong to other sources or another machine. */
export function findNative(path: string = addonPath()): NativeLoad {
  if (!existsSync(path)) return { kind: 'absent', why: `the native kernels are not compiled: ${path} is missing` };
  let native: NativeModule;
  try {
    native = createRequire(import.meta.url)(path) as NativeModule;
  } catch (error) {
    return {
      kind: 'absent',
      why: `the native kernels do not load: ${error instanceof Error ? error.message : String(error)}`,
    };
  }
  if (native.encodingVersion !== encodingVersion) {
    const versions = `version ${native.encodingVersion}, not ${encodingVersion}`;
    return { kind: 'absent', why: `the native kernels belong to other sources: ${versions}` };
  }
  return { kind: 'loaded', native };
}

/** The compiled kernels, or undefined; `findNative` gives the reason. */
export function loadNative(): NativeModule | undefined {
  const found = findNative();
  return found.kind === 'loaded' ? found.native : undefined;
}
