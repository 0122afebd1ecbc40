// The compiled addon as TypeScript sees it, and finding it.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { GuestCounts, RemoteCounts, SentPages, StoreCounts } from '../../util/counts.ts';
import { encodingVersion } from '../encode.ts';

/** What native/addon/ binds. Handles are integers, valid in every thread of the process. */
export interface NativeModule {
  readonly encodingVersion: number;
  detectIsa(): number;
  createBackend(isa: number, threads: number): number;
  freeBackend(team: number): void;
  memoryInfo(): MemoryInfo;
  /** Gives the system back what `malloc` keeps of freed memory, in the arenas of all threads; does nothing but with glibc. */
  trimHeap(): void;
  createLinear(team: number, columns: number, types: Int32Array, rows: Int32Array, inputs: number): number;
  packRows(linear: number, segment: number, firstRow: number, rows: number, bytes: Uint8Array): void;
  linearBytes(linear: number): number;
  freeLinear(linear: number): void;
  createVector(values: Float32Array): number;
  freeVector(vector: number): void;
  createPool(team: number, kvType: number, kvHeads: number, headDim: number, pages: number): number;
  /** A pool of another process of the same user, by the name it has there. */
  openPool(team: number, name: string): number;
  poolName(pool: number): string;
  /** Numbers in the canonical form of a page. */
  pageValues(pool: number): number;
  readPage(pool: number, page: number, out: Float32Array): void;
  writePage(pool: number, page: number, values: Float32Array): void;
  /** Float32 rows one after another, as programs leave them in such pages (`Step.rowsOut`). */
  writeRows(pool: number, pages: Int32Array, values: Float32Array): void;
  freePool(pool: number): void;
  /** `wake` is called in this thread when landings are complete. */
  createCompletionQueue(pool: number, wake: () => void): number;
  freeCompletionQueue(landings: number): void;
  /** Of pages (blocks, layers) on their way, which a step can compute behind. */
  createArrivals(layers: number, blocks: number): number;
  /** Only the first `blocks` come. */
  expectBlocks(arrivals: number, blocks: number): void;
  freeArrivals(arrivals: number): void;
  /** `arrivals` 0: nobody waits for its layers. */
  openReceiveBuffer(landings: number, pages: Int32Array, arrivals: number): number;
  closeReceiveBuffer(landing: number): void;
  takeCompleted(landings: number, out: Int32Array): number;
  createLocalSender(pool: number): number;
  freeLocalSender(messenger: number): void;
  nextStep(pool: number): number;
  sendPages(messenger: number, landing: number, step: number, parcels: Int32Array, last: number): boolean;
  stopSending(messenger: number, landing: number): void;
  pendingPages(messenger: number, landing: number): number;
  localSenderCounts(messenger: number): SentPages;
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
  /** (blocks, layers) pages both: a step that runs meanwhile waits for each layer's. */
  beginLoading(loader: number, layers: number, from: Int32Array, to: Int32Array): void;
  /** All is there when it returns. */
  finishLoading(loader: number): void;
  copyPages(pool: number, from: Int32Array, to: Int32Array): void;
  /** `host` and `port` to listen at; 32 bytes of key. */
  createReceiver(pool: number, host: string, port: number, way: number, key: Uint8Array): number;
  receiverPort(receiver: number): number;
  /** The key that senders to the landing have to name, in hexadecimal. */
  registerReceiveBuffer(receiver: number, landing: number): string;
  receiverCounts(receiver: number): ReceiverCounts;
  freeReceiver(receiver: number): void;
  createRemoteSender(pool: number, way: number, key: Uint8Array, frameBytes: number, giveUpMs: number): number;
  /** As `sendPages`; then the pages that may be written meanwhile. */
  sendPagesRemote(
    ...send: readonly [...FarTarget, step: number, parcels: Int32Array, last: number, filling: Int32Array]
  ): void;
  stopSendingRemote(...target: FarTarget): void;
  pendingPagesRemote(...target: FarTarget): number;
  /** As `transportCodes` has it; that of 'auto': nobody there has been reached yet. */
  transportTo(messenger: number, host: string, port: number): number;
  /** Addresses of landings that have been given up since the last call, as `NativeFarMessenger` writes them. */
  takeGivenUp(messenger: number): readonly string[];
  remoteSenderCounts(messenger: number): FarMessengerCounts;
  freeRemoteSender(messenger: number): void;
  /** Seconds that a bare socket loop takes to bring the first `pages` from one pool to another of the same shape. */
  benchSockets(from: number, to: number, chunkBytes: number, pages: number, readerCores: Int32Array): number;
  /** Cores that this thread may run on; none where the system does not say. */
  allowedCores(): readonly number[];
  /** This thread, and those that it starts, stay on these. */
  stayOn(cores: Int32Array): void;
  createRemoteAttentionServer(team: number, pool: number): number;
  freeRemoteAttention(room: number): void;
  /** `host` and `port` to listen at; 32 bytes of key. */
  openRemoteAttentionListener(room: number, host: string, port: number, way: number, key: Uint8Array): number;
  remoteAttentionListenerPort(door: number): number;
  closeRemoteAttentionListener(door: number): void;
  createRemoteAttentionClient(pool: number, host: string, port: number, way: number, key: Uint8Array): number;
  lendBlocks(room: number, loan: number, blocks: Int32Array, pages: Int32Array): void;
  takeBackBlocks(room: number, loan: number, blocks: Int32Array): void;
  setRemoteAttentionShare(room: number, thousandths: number): void;
  remoteAttentionServerCounts(room: number): GuestCounts;
  /** Of one loan's queries, but for the time. */
  remoteAttentionLoanCounts(room: number, loan: number): GuestCounts;
  remoteCounts(team: number): RemoteCounts;
  createProgram(
    team: number,
    ints: Int32Array,
    floats: Float64Array,
    ...bound: readonly (Int32Array | number)[]
  ): number;
  freeProgram(program: number): void;
  programBytes(program: number): number;
  run(program: number, pool: number, abort: Int32Array, ...step: readonly (number | ArrayBufferView)[]): boolean;
  bufferColumns(program: number, buffer: number): number;
  readBuffer(program: number, buffer: number, rows: number, out: Float32Array): void;
  writeBuffer(program: number, buffer: number, rows: number, values: Float32Array): void;
  /** Bytes per second of reading contiguous memory on huge pages. */
  readRoof(team: number, mebibytes: number, repetitions: number): number;
  /** Operations per second of the instruction that attention multiplies by. */
  attentionPeak(team: number, kvType: number): number;
  /** Operations per second of the instruction that linear layers multiply by. */
  productPeak(team: number, inputs: number): number;
  benchDecode(
    ...numbers: readonly number[]
  ): { readonly seconds: number; readonly bytes: number; readonly sequences: number } & NativeSplit;
  benchPrefill(...numbers: readonly number[]): { readonly seconds: number; readonly operations: number } & NativeSplit;
}

/** How processes reach each other: 'auto' over shared memory where both are on one host, else by tcp. */
export type Transport = 'auto' | 'tcp' | 'shared';
/** `Way` of native/net/listener.hpp. */
export const transportCodes: Readonly<Record<Transport, number>> = { auto: 0, tcp: 1, shared: 2 };

export interface FarMessengerCounts extends SentPages {
  /** Connections that ended before everything had arrived: what was missing was sent again. */
  readonly broken: number;
  /** Times that a receiver could not be reached for so long that nothing is sent any more. */
  readonly givenUp: number;
}

/** A landing of another process: messenger, host, port, number, key, places. */
export type FarTarget = readonly [number, string, number, number, string, number];

/** What has come over connections of others. */
export interface ReceiverCounts {
  readonly pages: number;
  readonly bytes: number;
  /** Frames to landings that are closed or never were, or whose stream was stopped on the way. */
  readonly late: number;
  /** Connections that did not prove the key. */
  readonly refused: number;
  /** Connections cut for what came over them. */
  readonly broken: number;
}

/** How attention shared out its work: `AttentionSplit` of native/attention/attention.hpp. */
export interface NativeSplit {
  readonly tileTokens: number;
  readonly groupRanges: number;
  readonly tasks: number;
  readonly merges: number;
}

export interface MemoryInfo {
  readonly residentBytes: number;
  readonly residentPeakBytes: number;
  /** Resident and not backed by a file; 0 where the system does not say. */
  readonly anonymousBytes: number;
  /** To this process: of the machine and of its control group. */
  readonly availableBytes: number;
}

export type NativeLoad =
  | { readonly kind: 'loaded'; readonly native: NativeModule }
  /** `why` is one line for people. */
  | { readonly kind: 'absent'; readonly why: string };

const addonPath = fileURLToPath(new URL('../../../build/kvasir.node', import.meta.url));

/** Finds the compiled kernels; absent where no compiler built them, or where they belong to other sources or another machine. */
export function findNative(path: string = addonPath): NativeLoad {
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

/** The compiled kernels, or undefined where `findNative` says why there are none. */
export function loadNative(): NativeModule | undefined {
  const found = findNative();
  return found.kind === 'loaded' ? found.native : undefined;
}
