// The native backend: the contract of backend.ts over the compiled addon.
import type { BufferId, Program } from '../../graph/program.ts';
import type { RemoteAttentionCounts, RemoteCounts } from '../../util/counts.ts';
import type { Step } from '../../util/step.ts';
import type {
  Backend,
  KvPoolHandle,
  KvPoolSpec,
  LinearHandle,
  LinearSpec,
  ProgramBindings,
  ProgramHandle,
  RemoteAttentionHandle,
  SlotStates,
  StepOutcome,
  VectorHandle,
} from '../backend.ts';
import { inputFormCodes, kvTypeCodes, type NativeIsa, nativeIsas, weightTypeCodes } from '../codes.ts';
import { encodeProgram } from '../encode.ts';
import { loadNative, type NativeModule } from './addon.ts';
import { createResult, failedFlags, stepArguments, withFailedSequences } from './step.ts';

export type { NativeIsa } from '../codes.ts';
export { findNative, loadNative, type NativeModule } from './addon.ts';

export interface NativeOptions {
  /** Compute threads, including the calling thread. */
  readonly threads: number;
  /** Undefined: the instruction set that `KVASIR_ISA` names, else the best of this machine. */
  readonly isa?: NativeIsa;
}

/** How long a step waits for a remote attention server that does not answer. */
const remoteWaitMs = 2000;

/** Instruction sets of this machine up to the bound `KVASIR_ISA`, ascending. */
export function availableIsas(native: NativeModule): readonly NativeIsa[] {
  return nativeIsas.slice(0, native.detectIsa() + 1);
}

/**
 * @throws if the kernels are not compiled, or this machine lacks the instruction set: the message lists those it has
 */
export function createNativeBackend(options: NativeOptions): NativeBackend {
  const native = loadNative();
  if (native === undefined) throw new Error('Cannot create the native backend: the kernels are not compiled');
  return new NativeBackend(native, chooseIsa(native, options.isa), options.threads);
}

/**
 * The requested one, else the one of `KVASIR_ISA`, else the best. @throws if this machine lacks it: the message lists
 * those it has
 */
export function chooseIsa(native: NativeModule, requested?: NativeIsa): NativeIsa {
  const available = availableIsas(native);
  const forced = process.env.KVASIR_ISA ?? '';
  // The addon emulates AMX for tests under a name of its own.
  const named = forced === 'amx-emulated' ? 'amx' : forced;
  const wanted = requested ?? (named === '' ? available.at(-1) : named);
  const isa = available.find((name) => name === wanted);
  if (isa === undefined)
    throw new Error(`Cannot use instruction set ${wanted}: this machine has ${available.join(', ')}`);
  return isa;
}

/** A step and the program that runs it. */
export interface ProgramStep {
  readonly program: ProgramHandle;
  readonly step: Step;
}

/** The model replicas of staggered batches, all with the same weights, and the order of their slices. */
export interface StaggeredReplicas {
  /** Replicas 1, 2, ...; replica 0 is the backend of the programs. None has more threads than that one. */
  readonly others: readonly NativeBackend[];
  /**
   * (turns, 2): batch and replica of each slice. A replica runs its turns in this order, and each slice after the
   * batch's slice before it. Empty: replica 0 runs all of them.
   */
  readonly turns: Int32Array;
}

const oneReplica: StaggeredReplicas = { others: [], turns: new Int32Array(0) };

export class NativeBackend implements Backend {
  readonly isa: NativeIsa;
  readonly threads: number;
  /** The compiled kernels, and this backend's handle there. */
  readonly native: NativeModule;
  readonly handle: number;
  readonly #programs = new Set<ProgramHandle>();

  constructor(native: NativeModule, isa: NativeIsa, threads: number) {
    this.native = native;
    this.isa = isa;
    this.threads = threads;
    this.handle = native.createBackend(nativeIsas.indexOf(isa), threads);
  }

  createLinear(spec: LinearSpec): LinearHandle {
    const types = Int32Array.from(spec.segments, (segment) => weightTypeCodes[segment.type]);
    const rows = Int32Array.from(spec.segments, (segment) => segment.rows);
    return this.native.createLinear(this.handle, spec.columns, types, rows, inputFormCodes[spec.inputs]);
  }

  packRows(linear: LinearHandle, segment: number, firstRow: number, rows: number, bytes: Uint8Array): void {
    this.native.packRows(linear, segment, firstRow, rows, bytes);
  }

  linearBytes(linear: LinearHandle): number {
    return this.native.linearBytes(linear);
  }

  createVector(values: Float32Array): VectorHandle {
    return this.native.createVector(values);
  }

  createKvPool(spec: KvPoolSpec): KvPoolHandle {
    const { kvHeads, headDim, pages } = spec;
    return this.native.createPool(
      this.handle,
      kvTypeCodes[spec.type],
      kvHeads,
      headDim,
      pages,
      Number(spec.atWorkers === true),
    );
  }

  readPage(pool: KvPoolHandle, page: number): Float32Array {
    const values = new Float32Array(this.native.pageValues(pool));
    this.native.readPage(pool, page, values);
    return values;
  }

  writePage(pool: KvPoolHandle, page: number, values: Float32Array): void {
    this.native.writePage(pool, page, values);
  }

  readSlotStates(pool: KvPoolHandle, page: number): SlotStates {
    const count = this.native.slotStates(pool);
    const states = { scores: new Float32Array(count), positions: new Int32Array(count) };
    this.native.readSlotStates(pool, page, states.scores, states.positions);
    return states;
  }

  createRemoteAttentionServer(pool: KvPoolHandle): RemoteAttentionHandle {
    return this.native.createRemoteAttentionServer(this.handle, pool);
  }

  createRemotePageReader(server: RemoteAttentionHandle): RemoteAttentionHandle {
    return this.native.createRemotePageReader(this.handle, server);
  }

  lendBlocks(server: RemoteAttentionHandle, loan: number, blocks: Int32Array, pages: Int32Array): void {
    this.native.lendBlocks(server, loan, blocks, pages);
  }

  takeBackBlocks(server: RemoteAttentionHandle, loan: number, blocks: Int32Array): void {
    this.native.takeBackBlocks(server, loan, blocks);
  }

  setRemoteAttentionShare(server: RemoteAttentionHandle, loan: number, thousandths: number): void {
    this.native.setRemoteAttentionShare(server, loan, thousandths);
  }

  remoteAttentionCounts(server: RemoteAttentionHandle): RemoteAttentionCounts {
    return this.native.remoteAttentionServerCounts(server);
  }

  freeRemoteAttentionServer(server: RemoteAttentionHandle): void {
    this.native.freeRemoteAttention(server);
  }

  remoteCounts(): RemoteCounts {
    return this.native.remoteCounts(this.handle);
  }

  createProgram(program: Program, bindings: ProgramBindings): ProgramHandle {
    const { ints, floats } = encodeProgram(program, bindings);
    const linears = Int32Array.from(bindings.linears);
    const vectors = Int32Array.from(bindings.vectors);
    const waitMs = bindings.remoteWaitMs ?? remoteWaitMs;
    const handle = this.native.createProgram(this.handle, ints, floats, linears, vectors, waitMs);
    this.#programs.add(handle);
    return handle;
  }

  run(program: ProgramHandle, pool: KvPoolHandle, step: Step, abort: Int32Array): StepOutcome {
    return this.runStaggered(pool, [{ program, step }], abort)[0];
  }

  /**
   * Runs the steps of several batches: each up to its next wait for attention workers, then the next batch. While one
   * batch's attention is computed, the others compute their slices (Lamina, rotational staggered pipelining). Each step
   * has a program and links to attention workers of its own. @param rotation undefined: this backend runs all slices
   */
  runStaggered(
    pool: KvPoolHandle,
    runs: readonly ProgramStep[],
    abort: Int32Array,
    rotation: StaggeredReplicas = oneReplica,
  ): readonly StepOutcome[] {
    const results = runs.map(({ step }) => createResult(step.logitRows.length));
    const flags = runs.map(({ step }) => failedFlags(step));
    const list = runs.flatMap(({ program, step }, i) => [program, ...stepArguments(step, results[i], flags[i])]);
    const done = new Uint8Array(runs.length);
    const replicas = Int32Array.from(rotation.others, ({ handle }) => handle);
    this.native.run(pool, abort, done, replicas, rotation.turns, ...list);
    return results.map((result, i) =>
      done[i] === 0 ? { kind: 'aborted' } : { kind: 'done', result: withFailedSequences(result, flags[i]) },
    );
  }

  readBuffer(program: ProgramHandle, buffer: BufferId, rows: number): Float32Array {
    const values = new Float32Array(rows * this.native.bufferColumns(program, buffer));
    this.native.readBuffer(program, buffer, rows, values);
    return values;
  }

  writeBuffer(program: ProgramHandle, buffer: BufferId, rows: number, values: Float32Array): void {
    this.native.writeBuffer(program, buffer, rows, values);
  }

  freeLinear(linear: LinearHandle): void {
    this.native.freeLinear(linear);
  }

  freeVector(vector: VectorHandle): void {
    this.native.freeVector(vector);
  }

  freeKvPool(pool: KvPoolHandle): void {
    this.native.freePool(pool);
  }

  freeProgram(program: ProgramHandle): void {
    this.native.freeProgram(program);
    this.#programs.delete(program);
  }

  /** Frees the programs of this backend first, because a program keeps the threads. */
  close(): void {
    for (const program of this.#programs) this.native.freeProgram(program);
    this.#programs.clear();
    this.native.freeBackend(this.handle);
  }
}
