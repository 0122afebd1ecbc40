// The interface of computation: one contract for the native kernels and for the plain TypeScript reference backend.
import type { BufferId, InputForm, Program } from '../graph/program.ts';
import type { RemoteAttentionCounts, RemoteCounts } from '../util/counts.ts';
import type { KvType } from '../util/kv-type.ts';
import type { QuantisedType } from '../util/quantised-blocks.ts';
import type { Step, StepResult } from '../util/step.ts';

export type Isa = 'portable' | 'avx2' | 'avx512' | 'amx' | 'reference';

/** Stored element types of a linear layer, with their GGUF names. */
export type WeightType = 'f32' | 'f16' | 'bf16' | QuantisedType;

/** A linear layer, (rows, columns) = (out, in). Several tensors with one input are one layer with several segments. */
export interface LinearSpec {
  readonly columns: number;
  readonly segments: readonly { readonly type: WeightType; readonly rows: number }[];
  /** int8 and i16 inputs require quantised segments; a layer with a float segment takes bf16 or f32. */
  readonly inputs: InputForm;
}

export interface KvPoolSpec {
  readonly pages: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly type: KvType;
  /** True: the pages lie at attention workers, and the pool has no memory of its own. */
  readonly atWorkers?: boolean;
}

/** Handles are integers, valid in every thread of the process until freed. */
export type LinearHandle = number;
export type VectorHandle = number;
export type KvPoolHandle = number;
export type ProgramHandle = number;

export interface ProgramBindings {
  readonly linears: readonly LinearHandle[];
  readonly vectors: readonly VectorHandle[];
  /** Maximum tokens of a step: sizes the buffers. */
  readonly tokensMax: number;
  readonly logitRowsMax: number;
  /** Maximum tokens of a sequence: sizes the attention scratch. */
  readonly contextMax: number;
  /**
   * Timeout for a creditor's remote attention server, after which the sequences that wait for it fail; 2000 by default.
   */
  readonly remoteWaitMs?: number;
}

/** Handle of a remote attention server, valid in every thread of the process; see `Step.remote`. */
export type RemoteAttentionHandle = number;

/** Attention over lent blocks, from both sides: the server over a creditor's pool, and the counts of its debtors. */
export interface RemoteAttentionServers {
  /**
   * A server over a pool of this backend. It computes with the backend's threads while no step uses them, else alone
   * and within its share.
   */
  createRemoteAttentionServer(pool: KvPoolHandle): RemoteAttentionHandle;
  /**
   * A reader of the pages that a server lends, for `Step.remote`: steps of this backend compute over them with their own
   * threads instead of sending rows. Of a server of this process it reads the pages in place; through a client of one in
   * another process it fetches them, one layer at a time. `freeRemoteAttentionServer` frees it.
   */
  createRemotePageReader(server: RemoteAttentionHandle): RemoteAttentionHandle;
  /**
   * Serves queries of this loan over these blocks from now on. Their pages hold full blocks and are not written any
   * more.
   * @param pages (blocks, layers): page ids, in the layer group that debtors name
   * @throws when a block is lent already, or the pool has no such page
   */
  lendBlocks(server: RemoteAttentionHandle, loan: number, blocks: Int32Array, pages: Int32Array): void;
  /**
   * After the return, no remote attention reads the pages of these blocks, and queries for them are refused. Blocks
   * that this loan does not hold stay as they are.
   */
  takeBackBlocks(server: RemoteAttentionHandle, loan: number, blocks: Int32Array): void;
  /**
   * Share of one core's time, in thousandths, for queries of a loan while local steps run and do not wait; 0: none.
   * Initially all of it.
   */
  setRemoteAttentionShare(server: RemoteAttentionHandle, loan: number, thousandths: number): void;
  remoteAttentionCounts(server: RemoteAttentionHandle): RemoteAttentionCounts;
  /** Refuses open and future queries. */
  freeRemoteAttentionServer(server: RemoteAttentionHandle): void;
  remoteCounts(): RemoteCounts;
}

/** States of consecutive slots in one page: (kvHeads, slots). */
export interface SlotStates {
  readonly scores: Float32Array;
  readonly positions: Int32Array;
}

export type StepOutcome =
  | { readonly kind: 'done'; readonly result: StepResult }
  /** The abort word was set. Nothing is committed, and the step can run again with fewer rows. */
  | { readonly kind: 'aborted' };

export interface Backend extends RemoteAttentionServers {
  readonly isa: Isa;
  readonly threads: number;
  createLinear(spec: LinearSpec): LinearHandle;
  /** Packs `rows` consecutive rows of a segment from their stored bytes; each row exactly once, in any order. */
  packRows(linear: LinearHandle, segment: number, firstRow: number, rows: number, bytes: Uint8Array): void;
  /** Memory of the packed layer. */
  linearBytes(linear: LinearHandle): number;
  createVector(values: Float32Array): VectorHandle;
  createKvPool(spec: KvPoolSpec): KvPoolHandle;
  /** Canonical content of a page, for tests and transfers: (2, kvHeads, tokens, headDim) as float32, K first. */
  readPage(pool: KvPoolHandle, page: number): Float32Array;
  writePage(pool: KvPoolHandle, page: number, values: Float32Array): void;
  /** The states in a page of slot states, for tests and reports. */
  readSlotStates(pool: KvPoolHandle, page: number): SlotStates;
  createProgram(program: Program, bindings: ProgramBindings): ProgramHandle;
  /**
   * Runs one step synchronously, on the calling thread and the backend's own threads.
   * @param abort the words of `StepInterrupt` (`src/runtime/threads`), of which kernels use two: the first is polled
   * between ops, and any value but 0 ends the step as `aborted`; the third, if present, is 1 while the step waits for
   * `rowsIn`.
   */
  run(program: ProgramHandle, pool: KvPoolHandle, step: Step, abort: Int32Array): StepOutcome;
  /**
   * Copies rows of an f32 buffer (or of an `input`/`query` buffer, widened) after the last run, for tests and accuracy.
   * Only program inputs, which no op writes, and outputs, which no later op reads, have memory of their own; other
   * buffers may throw.
   */
  readBuffer(program: ProgramHandle, buffer: BufferId, rows: number): Float32Array;
  /** Fills rows of an f32, input or query buffer, rounded like the op that usually writes it, for tests. */
  writeBuffer(program: ProgramHandle, buffer: BufferId, rows: number, values: Float32Array): void;
  freeLinear(linear: LinearHandle): void;
  freeVector(vector: VectorHandle): void;
  freeKvPool(pool: KvPoolHandle): void;
  freeProgram(program: ProgramHandle): void;
  /** Ends the backend's threads. */
  close(): void;
}
