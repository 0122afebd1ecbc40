// The program of a pipeline stage: a range of layers. The output buffer of one stage is the input of the next.

import { assertNever } from '../util/assert-never.ts';
import { opReads, opWrites } from './plan.ts';
import type { BufferId, BufferSpec, Op, Program } from './program.ts';

/** Layers in the order of computation; `to` is exclusive. */
export interface LayerSpan {
  readonly from: number;
  readonly to: number;
}

export interface StageProgram {
  readonly program: Program;
  /**
   * f32 token rows that the first op waits for, or that are written before a step; undefined: the stage starts from the
   * token ids.
   */
  readonly input: BufferId | undefined;
  /** f32 rows that the last op hands to the next stage; undefined: the stage ends with the logits. */
  readonly output: BufferId | undefined;
}

/** Between two ops, or inside a norm with a residual: after the add, before the norm. */
interface Cut {
  readonly before: number;
  readonly splits: boolean;
  readonly carried: BufferId;
}

/**
 * The program of these layers. Linears and vectors keep their ids; layerReady counts from the stage's first layer.
 * @throws Error when the program lacks these layers or cannot be cut there
 */
export function stageProgram(program: Program, { from, to }: LayerSpan): StageProgram {
  const layers = program.ops.filter(({ kind }) => kind === 'qkv').length;
  if (!(from >= 0 && from < to && to <= layers))
    throw new RangeError(`Cannot make a pipeline stage: layers ${from} to ${to} of ${layers}`);
  const [begin, end] = [from, to].map((layer) => (layer % layers === 0 ? undefined : cutBefore(program, layer)));
  const ops = program.ops.slice(begin?.before ?? 0, end?.before ?? program.ops.length);
  const first = ops[0];
  // The add belongs to the previous stage, the norm of the sum to this one.
  if (begin?.splits === true && first?.kind === 'norm') ops[0] = { ...first, x: begin.carried, residual: undefined };
  if (end?.splits === true) ops.push(residualAddOf(program.ops[end.before]));
  if (begin !== undefined) ops.unshift({ kind: 'waitRows', out: begin.carried });
  if (end !== undefined) ops.push({ kind: 'rowsReady', x: end.carried });
  const named = (id: BufferId | undefined) => (id === undefined ? undefined : ids.get(id));
  const { program: stage, ids } = subprogram(program, ops, end === undefined);
  return { program: stage, input: named(begin?.carried), output: named(end?.carried) };
}

/** The place before this layer where the fewest columns are carried over; the last such place. */
function cutBefore(program: Program, layer: number): Cut {
  const { ops, buffers } = program;
  const calls = ops.flatMap(({ kind }, index) => (kind === 'qkv' ? [index] : []));
  const live = liveBefore(program);
  let best: Cut | undefined;
  for (let before = calls[layer - 1] + 1; before <= calls[layer]; before++) {
    const op = ops[before];
    for (const splits of op.kind === 'norm' && op.residual !== undefined ? [false, true] : [false]) {
      const carried = [...live[before]].filter(
        (id) => !(splits && op.kind === 'norm' && id === op.x && live[before + 1]?.has(id) !== true),
      );
      const [only] = carried;
      if (only === undefined || carried.length > 1 || !isPlain(buffers[only])) continue;
      if (best === undefined || buffers[only].columns <= buffers[best.carried].columns)
        best = { before, splits, carried: only };
    }
  }
  if (best === undefined)
    throw new Error(`Cannot make a pipeline stage: more than one buffer is carried into layer ${layer}`);
  return best;
}

function isPlain({ kind, rows }: BufferSpec): boolean {
  return kind === 'f32' && rows === 'token';
}

/** (ops): buffers that this op or a later one reads before they are overwritten. */
export function liveBefore({ ops, logits }: Program): readonly ReadonlySet<BufferId>[] {
  const live = new Set<BufferId>(logits === undefined ? [] : [logits]);
  const before: ReadonlySet<BufferId>[] = [];
  for (let index = ops.length - 1; index >= 0; index--) {
    for (const id of opWrites(ops[index])) live.delete(id);
    for (const id of opReads(ops[index])) live.add(id);
    before[index] = new Set(live);
  }
  return before;
}

function residualAddOf(op: Op | undefined): Op {
  if (op?.kind !== 'norm' || op.residual === undefined)
    throw new Error('Cannot make a pipeline stage: the op before the cut has no residual');
  return { kind: 'add', x: op.x, residual: op.residual };
}

export interface Subprogram {
  readonly program: Program;
  /** Ids in `program` of the buffers that it uses, by their ids in the whole program. */
  readonly ids: ReadonlyMap<BufferId, BufferId>;
}

/** The program of some ops, without unused buffers; layerReady counts from 1. @param logits whether it ends with them */
export function subprogram(program: Program, ops: readonly Op[], logits: boolean): Subprogram {
  const ids = new Map<BufferId, BufferId>();
  const buffers: BufferSpec[] = [];
  const rename = (id: BufferId): BufferId => {
    const known = ids.get(id);
    if (known !== undefined) return known;
    const next = buffers.push(program.buffers[id]) - 1;
    ids.set(id, next);
    return next;
  };
  let ready = 0;
  const renamed = ops.map((op) => (op.kind === 'layerReady' ? { ...op, layers: ++ready } : withBuffers(op, rename)));
  const last = logits && program.logits !== undefined ? rename(program.logits) : undefined;
  return { program: { ...program, buffers, ops: renamed, logits: last, hidden: undefined }, ids };
}

/** The op with renamed buffers. */
function withBuffers(op: Op, rename: (id: BufferId) => BufferId): Op {
  switch (op.kind) {
    case 'embed':
      return { ...op, out: rename(op.out) };
    case 'norm': {
      const residual = op.residual === undefined ? undefined : rename(op.residual);
      return { ...op, x: rename(op.x), residual, out: rename(op.out) };
    }
    case 'linear':
    case 'glu':
    case 'activate':
    case 'convert':
    case 'gather':
    case 'qkv':
    case 'sendQ':
    case 'sendKV':
      return { ...op, x: rename(op.x), out: rename(op.out) };
    case 'add':
      return { ...op, x: rename(op.x), residual: rename(op.residual) };
    case 'softcap':
    case 'rowsReady':
      return { ...op, x: rename(op.x) };
    case 'waitRows':
      return { ...op, out: rename(op.out) };
    case 'waitPartial': {
      const sent = op.sent && { q: rename(op.sent.q), kv: rename(op.sent.kv) };
      return { ...op, sent, out: rename(op.out) };
    }
    case 'layerReady':
    case 'waitLayer':
      return op;
    case 'attention': {
      const stats = op.stats && { max: rename(op.stats.max), sum: rename(op.stats.sum) };
      return { ...op, q: rename(op.q), stats, out: rename(op.out) };
    }
    case 'merge': {
      const parts = op.parts.map(({ o, max, sum }) => ({ o: rename(o), max: rename(max), sum: rename(sum) }));
      return { ...op, parts, out: rename(op.out) };
    }
    default:
      assertNever(op);
  }
}
