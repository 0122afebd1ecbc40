// The reference backend: every op in plain TypeScript, with products and sums in float64. Slow; needs no compiled
// kernels.

import { planBuffers } from '../../graph/plan.ts';
import type { BufferId, Op, Program } from '../../graph/program.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { RemoteAttentionCounts, RemoteCounts } from '../../util/counts.ts';
import { needsLogits, type Step, type StepGroup } from '../../util/step.ts';
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
import {
  type AttentionTask,
  mergePartials,
  pagesOf,
  ReferencePool,
  runAttention,
  runQkv,
  runSendKV,
  runSendQ,
} from './attention.ts';
import { createBuffer, finishRow, type RowBuffer, rowOf, writeRow } from './buffers.ts';
import { checkGroups } from './groups.ts';
import { Handles } from './handles.ts';
import { ReferenceLinear } from './linear.ts';
import { runActivate, runAdd, runGlu, runNorm, runSoftcap } from './ops.ts';
import {
  failedSequencesOf,
  ReferenceAttentionServer,
  referenceAttentionServers,
  withRemotePages,
} from './remote-attention.ts';
import { emptyResult, sampleRow } from './sample.ts';
import { attendBoundedPages, attendSlots, type SparseTask, selectTokens } from './sparse.ts';
import { checkSparse, isSparse } from './sparse-check.ts';
import { slotStatesOf } from './sparse-slots.ts';

interface BoundProgram {
  readonly program: Program;
  readonly buffers: readonly RowBuffer[];
  readonly linears: readonly ReferenceLinear[];
  readonly vectors: readonly Float32Array[];
  readonly tokensMax: number;
  readonly logitRowsMax: number;
}

/** The state that ops use while a step runs. */
interface StepState {
  readonly bound: BoundProgram;
  readonly pool: ReferencePool;
  readonly step: Step;
  /** Indices of sequences with unavailable remote keys. */
  readonly failedSequences: ReadonlySet<number>;
  readonly staged: Map<number, Float32Array>;
}

export class ReferenceBackend implements Backend {
  readonly isa = 'reference';
  readonly threads = 1;
  readonly #linears = new Handles<ReferenceLinear>('linear layer');
  readonly #vectors = new Handles<Float32Array>('vector');
  readonly #pools = new Handles<ReferencePool>('KV pool');
  readonly #programs = new Handles<BoundProgram>('program');
  readonly #servers = new Set<RemoteAttentionHandle>();
  #remoteQueries = 0;

  createLinear(spec: LinearSpec): LinearHandle {
    return this.#linears.add(new ReferenceLinear(spec));
  }

  packRows(linear: LinearHandle, segment: number, firstRow: number, rows: number, bytes: Uint8Array): void {
    this.#linears.get(linear).pack(segment, firstRow, rows, bytes);
  }

  linearBytes(linear: LinearHandle): number {
    return this.#linears.get(linear).bytes();
  }

  createVector(values: Float32Array): VectorHandle {
    return this.#vectors.add(values.slice());
  }

  createKvPool(spec: KvPoolSpec): KvPoolHandle {
    return this.#pools.add(new ReferencePool(spec));
  }

  readPage(pool: KvPoolHandle, page: number): Float32Array {
    return this.#pools.get(pool).page(page).slice();
  }

  writePage(pool: KvPoolHandle, page: number, values: Float32Array): void {
    this.#pools.get(pool).write(page, values);
  }

  readSlotStates(pool: KvPoolHandle, page: number): SlotStates {
    return slotStatesOf(this.#pools.get(pool), page);
  }

  createRemoteAttentionServer(pool: KvPoolHandle): RemoteAttentionHandle {
    const server = referenceAttentionServers.add(new ReferenceAttentionServer(this.#pools.get(pool)));
    this.#servers.add(server);
    return server;
  }

  /** Servers of the reference backend read lent pages in place. */
  createRemotePageReader(server: RemoteAttentionHandle): RemoteAttentionHandle {
    return referenceAttentionServers.add(referenceAttentionServers.get(server));
  }

  lendBlocks(server: RemoteAttentionHandle, loan: number, blocks: Int32Array, pages: Int32Array): void {
    referenceAttentionServers.get(server).lend(loan, blocks, pages);
  }

  takeBackBlocks(server: RemoteAttentionHandle, loan: number, blocks: Int32Array): void {
    referenceAttentionServers.get(server).takeBack(loan, blocks);
  }

  /** Remote attention of the reference backend runs in the debtor's thread: there is nothing to limit. */
  setRemoteAttentionShare(server: RemoteAttentionHandle): void {
    referenceAttentionServers.get(server);
  }

  remoteAttentionCounts(server: RemoteAttentionHandle): RemoteAttentionCounts {
    return referenceAttentionServers.get(server).counts;
  }

  freeRemoteAttentionServer(server: RemoteAttentionHandle): void {
    referenceAttentionServers.free(server);
    this.#servers.delete(server);
  }

  remoteCounts(): RemoteCounts {
    return { queries: this.#remoteQueries, bytesOut: 0, bytesIn: 0, waitSeconds: 0 };
  }

  createProgram(program: Program, bindings: ProgramBindings): ProgramHandle {
    const { tokensMax, logitRowsMax } = bindings;
    const { buffers, place } = planBuffers(program);
    const planned = buffers.map((spec) =>
      createBuffer(spec, spec.rows === 'token' ? tokensMax : logitRowsMax, program.kvType),
    );
    return this.#programs.add({
      program,
      buffers: place.map((id) => planned[id]),
      linears: bindings.linears.map((handle) => this.#linears.get(handle)),
      vectors: bindings.vectors.map((handle) => this.#vectors.get(handle)),
      tokensMax,
      logitRowsMax,
    });
  }

  run(program: ProgramHandle, pool: KvPoolHandle, step: Step, abort: Int32Array): StepOutcome {
    const failedSequences = failedSequencesOf(step);
    const handles = { bound: this.#programs.get(program), pool: this.#pools.get(pool) };
    const state: StepState = { ...handles, step, failedSequences, staged: new Map() };
    const { tokensMax, logitRowsMax } = state.bound;
    if (step.tokens.length > tokensMax || step.logitRows.length > logitRowsMax) {
      const figures = `${step.tokens.length} tokens and ${step.logitRows.length} logit rows exceed ${tokensMax} and ${logitRowsMax}`;
      throw new RangeError(`Cannot run step: it is larger than planned: ${figures}`);
    }
    checkGroups(state.bound.program.groups, step);
    checkSparse(state.bound.program.groups, state.pool.spec, step);
    const needed = needsLogits(step);
    const { ops, hidden } = state.bound.program;
    for (const op of needed ? ops : ops.slice(0, hidden?.end ?? ops.length)) {
      if (Atomics.load(abort, 0) !== 0) return { kind: 'aborted' };
      runOp(op, state);
    }
    this.#remoteQueries += countQueries(state);
    const result = { ...emptyResult(step.logitRows.length), failedSequences: Int32Array.from(failedSequences).sort() };
    const logits = state.bound.program.logits;
    if (logits !== undefined && needed) {
      const rows = bufferOf(state.bound, logits);
      for (let row = 0; row < step.logitRows.length; row++) sampleRow(rowOf(rows, row), step.sampling, row, result);
    }
    return { kind: 'done', result };
  }

  readBuffer(program: ProgramHandle, buffer: BufferId, rows: number): Float32Array {
    const { values, columns } = bufferOf(this.#programs.get(program), buffer);
    return values.slice(0, rows * columns);
  }

  writeBuffer(program: ProgramHandle, buffer: BufferId, rows: number, values: Float32Array): void {
    const into = bufferOf(this.#programs.get(program), buffer);
    for (let row = 0; row < rows; row++)
      writeRow(into, row, values.subarray(row * into.columns, (row + 1) * into.columns));
  }

  freeLinear(linear: LinearHandle): void {
    this.#linears.free(linear).free();
  }

  freeVector(vector: VectorHandle): void {
    this.#vectors.free(vector);
  }

  freeKvPool(pool: KvPoolHandle): void {
    this.#pools.free(pool);
  }

  freeProgram(program: ProgramHandle): void {
    this.#programs.free(program);
  }

  close(): void {
    for (const server of this.#servers) referenceAttentionServers.free(server);
    this.#servers.clear();
    for (const handles of [this.#programs, this.#pools, this.#vectors, this.#linears]) handles.clear();
  }
}

function bufferOf(bound: BoundProgram, id: BufferId): RowBuffer {
  const buffer = bound.buffers[id];
  if (buffer === undefined) throw new RangeError(`Cannot use buffer: ${id} of ${bound.buffers.length}`);
  return buffer;
}

function rowsOf(state: StepState, id: BufferId): number {
  return state.bound.program.buffers[id]?.rows === 'logit' ? state.step.logitRows.length : state.step.tokens.length;
}

function linearOf(bound: BoundProgram, id: number): ReferenceLinear {
  const linear = bound.linears[id];
  if (linear === undefined) throw new RangeError(`Cannot use linear layer: ${id} of ${bound.linears.length} bound`);
  return linear;
}

function vectorOf(bound: BoundProgram, id: number): Float32Array {
  const vector = bound.vectors[id];
  if (vector === undefined) throw new RangeError(`Cannot use vector: ${id} of ${bound.vectors.length} bound`);
  return vector;
}

function runOp(op: Op, state: StepState): void {
  const { bound, step } = state;
  const buffer = (id: BufferId) => bufferOf(bound, id);
  const vector = (id: number | undefined) => (id === undefined ? undefined : vectorOf(bound, id));
  switch (op.kind) {
    case 'embed':
      runEmbed(op, state);
      break;
    case 'norm': {
      const residual = op.residual === undefined ? undefined : buffer(op.residual);
      const { style, eps } = op;
      const vectors = { gain: vectorOf(bound, op.gain), bias: vector(op.bias) };
      runNorm({ style, x: buffer(op.x), residual, ...vectors, eps, out: buffer(op.out) }, rowsOf(state, op.out));
      break;
    }
    case 'linear':
      linearOf(bound, op.weight).run(buffer(op.x), buffer(op.out), rowsOf(state, op.out), vector(op.bias));
      break;
    case 'glu':
      runGlu(op.activation, buffer(op.x), buffer(op.out), rowsOf(state, op.out));
      break;
    case 'activate':
      runActivate(op.activation, buffer(op.x), buffer(op.out), rowsOf(state, op.out));
      break;
    case 'add':
      runAdd(buffer(op.x), buffer(op.residual), rowsOf(state, op.residual));
      break;
    case 'softcap':
      runSoftcap(op.cap, buffer(op.x), rowsOf(state, op.x));
      break;
    case 'convert':
      for (let row = 0; row < rowsOf(state, op.out); row++) writeRow(buffer(op.out), row, rowOf(buffer(op.x), row));
      break;
    case 'gather':
      for (const [row, from] of step.logitRows.entries()) writeRow(buffer(op.out), row, rowOf(buffer(op.x), from));
      break;
    case 'layerReady':
    case 'waitLayer':
    case 'waitRows':
    case 'rowsReady':
      // Pages of the reference backend never move between threads: there is nothing to wait for.
      break;
    case 'qkv':
    case 'attention':
      runPaged(op, state);
      break;
    case 'sendQ':
    case 'sendKV':
    case 'waitPartial':
      runModelWorkerOp(op, state);
      break;
    case 'merge': {
      const parts = op.parts.map((part) => ({ o: buffer(part.o), max: buffer(part.max), sum: buffer(part.sum) }));
      mergePartials(parts, op.heads, op.headDim, buffer(op.out), rowsOf(state, op.out));
      break;
    }
    default:
      assertNever(op);
  }
}

function runEmbed({ table, scale, positions, out: id }: Op & { kind: 'embed' }, { bound, step }: StepState): void {
  const out = bufferOf(bound, id);
  step.tokens.forEach((token, row) => {
    const values = rowOf(out, row);
    linearOf(bound, table).readRow(token, values);
    if (scale !== 1) for (let i = 0; i < values.length; i++) values[i] = values[i] * scale;
  });
  if (positions !== undefined) addPositions(vectorOf(bound, positions.table), positions, step, out);
  for (let row = 0; row < step.tokens.length; row++) finishRow(out, row);
}

function addPositions(
  table: Float32Array,
  { offset, types }: { readonly offset: number; readonly types: number },
  { positions, tokenTypes }: Step,
  out: RowBuffer,
): void {
  const typeValues = table.length / types;
  positions.forEach((position, row) => {
    const values = rowOf(out, row);
    const from = (tokenTypes?.[row] ?? 0) * typeValues;
    const at = from + (position + offset) * values.length;
    if (at + values.length > from + typeValues)
      throw new RangeError(`Cannot embed: position ${position} + ${offset} is past the table of positions`);
    for (let i = 0; i < values.length; i++) values[i] = values[i] + table[at + i];
  });
}

type ModelWorkerOp = Op & { readonly kind: 'sendQ' | 'sendKV' | 'waitPartial' };

/**
 * The rows of a model worker stay in the buffer, where the reference backend's caller reads them. It writes their
 * attention before it runs the next slice.
 */
function runModelWorkerOp(op: ModelWorkerOp, { bound, step }: StepState): void {
  if (op.kind === 'waitPartial') {
    if (op.sent !== undefined) throw new Error('Cannot run the step: attention workers need the native kernels');
    return;
  }
  const vector = (id: number | undefined) => (id === undefined ? undefined : vectorOf(bound, id));
  const { headDim, rotaryDim, eps } = op;
  const gain = vector(op.kind === 'sendQ' ? op.qNorm : op.kNorm);
  const transform = { headDim, rotaryDim, eps, gain, rope: vector(op.rope) };
  const task = { transform, x: bufferOf(bound, op.x), out: bufferOf(bound, op.out) };
  if (op.kind === 'sendQ') runSendQ(task, step);
  else runSendKV(task, step);
}

/** Ops that access K and V pages. */
function runPaged(op: Op & { kind: 'qkv' | 'attention' }, state: StepState): void {
  if (op.kind === 'qkv') runPagedQkv(op, state);
  else runPagedAttention(op, state);
}

function runPagedQkv(op: Op & { kind: 'qkv' }, state: StepState): void {
  const { bound, pool, step, staged } = state;
  const { heads, kvHeads, headDim } = op;
  const buffer = (id: BufferId) => bufferOf(bound, id);
  const vector = (id: number | undefined) => (id === undefined ? undefined : vectorOf(bound, id));
  const transform = { headDim, rope: vector(op.rope), rotaryDim: op.rotaryDim, eps: op.eps };
  const q = { ...transform, gain: vector(op.qNorm) };
  const k = { ...transform, gain: vector(op.kNorm) };
  const group = groupOf(op, step);
  const pages = (sequence: number) =>
    isSparse(step, sequence, op.layer.group) ? undefined : pagesOf(pool, group, sequence, op.layer.index);
  runQkv({ heads, kvHeads, headDim, q, k, x: buffer(op.x), query: buffer(op.out) }, step, pages, pool, staged);
}

function runPagedAttention(op: Op & { kind: 'attention' }, state: StepState): void {
  const { bound, pool, step, failedSequences, staged } = state;
  const { heads, kvHeads, headDim, scale, window, softcap, layer } = op;
  const buffer = (id: BufferId) => bufferOf(bound, id);
  const group = groupOf(op, step);
  const localPages = (sequence: number) => pagesOf(pool, group, sequence, layer.index);
  const task: AttentionTask = {
    ...{ heads, kvHeads, headDim, scale, window, softcap },
    bidirectional: op.bidirectional === true,
    slopes: op.slopes === undefined ? undefined : vectorOf(bound, op.slopes),
    query: buffer(op.q),
    out: buffer(op.out),
    stats: op.stats === undefined ? undefined : { max: buffer(op.stats.max), sum: buffer(op.stats.sum) },
  };
  const pages = (sequence: number) => {
    if (failedSequences.has(sequence)) return undefined;
    const remote = step.remote.filter((keys) => keys.sequence === sequence && keys.group === layer.group);
    return withRemotePages(localPages(sequence), remote, layer.index);
  };
  const here = <Entry extends { readonly group: number }>(entries: readonly Entry[] | undefined) =>
    (entries ?? []).filter((entry) => entry.group === layer.group);
  const bounded = here(step.pageSelections);
  const isElsewhere = (sequence: number) =>
    isSparse(step, sequence, layer.group) || bounded.some((selection) => selection.sequence === sequence);
  runAttention(task, step, pages, pool, isElsewhere);
  const sparse: SparseTask = { task, step, pool, layer: layer.index };
  for (const keys of here(step.sparse)) attendSlots(sparse, keys, staged);
  for (const selection of bounded) attendBoundedPages(sparse, selection, group.layers, localPages(selection.sequence));
  for (const selection of here(step.selections)) selectTokens(sparse, selection, localPages(selection.sequence));
}

function groupOf(op: Op & { kind: 'qkv' | 'attention' }, step: Step): StepGroup {
  const group = step.groups[op.layer.group];
  if (group === undefined)
    throw new RangeError(`Cannot run step: layer group ${op.layer.group} of ${step.groups.length} given`);
  return group;
}

/** Counts the queries at their servers, and returns their number: one for each sequence, server and layer. */
function countQueries({ bound, step, failedSequences }: StepState): number {
  let queries = 0;
  for (const op of step.remote.length === 0 ? [] : bound.program.ops) {
    if (op.kind !== 'attention') continue;
    const asked = new Set<string>();
    for (const { sequence, group, server } of step.remote) {
      if (group !== op.layer.group || failedSequences.has(sequence) || asked.has(`${sequence} ${server}`)) continue;
      asked.add(`${sequence} ${server}`);
      referenceAttentionServers.get(server).answered(step.rowStart[sequence + 1] - step.rowStart[sequence]);
    }
    queries += asked.size;
  }
  return queries;
}
