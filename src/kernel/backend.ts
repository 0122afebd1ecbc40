// The seam between TypeScript and computation: one contract for the native kernels and for the plain-TypeScript oracle.
import type { BufferId, InputForm, KvType, Program } from '../graph/program.ts';
import type { QuantisedType } from '../util/quantised-blocks.ts';
import type { Step, StepResult } from '../util/step.ts';
import type { RemoteAttentionServers } from './guests.ts';

export type Isa = 'portable' | 'avx2' | 'avx512' | 'amx' | 'reference';

/** Stored element types of a linear layer, by their names in GGUF. */
export type WeightType = 'f32' | 'f16' | 'bf16' | QuantisedType;

/** A linear layer, (rows, columns) = (out, in); several tensors with one input are one layer of several segments. */
export interface LinearSpec {
  readonly columns: number;
  readonly segments: readonly { readonly type: WeightType; readonly rows: number }[];
  /** int8 inputs need quantised segments; a layer with a float segment takes bf16 or f32. */
  readonly inputs: InputForm;
}

export interface KvPoolSpec {
  readonly pages: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly type: KvType;
}

/** Handles are integers, valid in every thread of the process until freed. */
export type LinearHandle = number;
export type VectorHandle = number;
export type KvPoolHandle = number;
export type ProgramHandle = number;

export interface ProgramBindings {
  readonly linears: readonly LinearHandle[];
  readonly vectors: readonly VectorHandle[];
  /** Largest step: buffers are planned for it. */
  readonly tokensMax: number;
  readonly logitRowsMax: number;
  /** Longest sequence, in tokens: attention scratch is planned for it. */
  readonly contextMax: number;
  /** A creditor's room that answers nothing for so long fails the sequences that wait for it; 2000 unless given. */
  readonly remoteWaitMs?: number;
}

export type StepOutcome =
  | { readonly kind: 'done'; readonly result: StepResult }
  /** The abort word was set; nothing is committed and the step can run again without some rows. */
  | { readonly kind: 'aborted' };

export interface Backend extends RemoteAttentionServers {
  readonly isa: Isa;
  readonly threads: number;
  createLinear(spec: LinearSpec): LinearHandle;
  /** Packs `rows` consecutive rows of a segment from their stored bytes; every row exactly once, in any order. */
  packRows(linear: LinearHandle, segment: number, firstRow: number, rows: number, bytes: Uint8Array): void;
  /** Bytes the packed layer takes in memory. */
  linearBytes(linear: LinearHandle): number;
  createVector(values: Float32Array): VectorHandle;
  createKvPool(spec: KvPoolSpec): KvPoolHandle;
  /** Canonical content of a page slot range, for tests and transfers: (2, kvHeads, tokens, headDim) as float32, K first. */
  readPage(pool: KvPoolHandle, page: number): Float32Array;
  writePage(pool: KvPoolHandle, page: number, values: Float32Array): void;
  createProgram(program: Program, bindings: ProgramBindings): ProgramHandle;
  /**
   * Runs one step on the calling thread and the backend's own threads; synchronous.
   * @param abort its first word is polled between ops; a value other than 0 ends the step as `aborted`. Its third, if there is one, is 1 while the step waits for `rowsIn`.
   */
  run(program: ProgramHandle, pool: KvPoolHandle, step: Step, abort: Int32Array): StepOutcome;
  /**
   * Rows of an f32 buffer (or of an `input`/`query` buffer, widened) as the last run left them: a copy, for tests and accuracy.
   * Only what ops read and never write (inputs) or what no later op reads (outputs) has memory of its own; others may throw.
   */
  readBuffer(program: ProgramHandle, buffer: BufferId, rows: number): Float32Array;
  /** Fills rows of an f32, input or query buffer (rounding as the op that usually writes it would), for tests. */
  writeBuffer(program: ProgramHandle, buffer: BufferId, rows: number, values: Float32Array): void;
  freeLinear(linear: LinearHandle): void;
  freeVector(vector: VectorHandle): void;
  freeKvPool(pool: KvPoolHandle): void;
  freeProgram(program: ProgramHandle): void;
  /** Ends the backend's threads. */
  close(): void;
}
