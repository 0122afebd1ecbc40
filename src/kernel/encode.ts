// Programs as integers and floats, as native/program/encoded.hpp reads them. Both files change together, with the
// version.
import { isKept, opReads, opWrites } from '../graph/plan.ts';
import type { BufferId, BufferSpec, HeadShape, LayerRef, Op, Program } from '../graph/program.ts';
import { assertNever } from '../util/assert-never.ts';
import type { ProgramBindings } from './backend.ts';
import { activationCodes, inputFormCodes, kvTypeCodes, normStyleCodes } from './codes.ts';

export const encodingVersion = 7;

const opCodes = {
  embed: 0,
  norm: 1,
  linear: 2,
  glu: 3,
  convert: 4,
  qkv: 5,
  attention: 6,
  merge: 7,
  gather: 8,
  activate: 9,
  add: 10,
  softcap: 11,
  layerReady: 12,
  waitLayer: 13,
  rowsReady: 14,
  waitRows: 15,
  sendQ: 16,
  sendKV: 17,
  waitPartial: 18,
} as const satisfies Record<Op['kind'], number>;
const bufferKindCodes = { f32: 0, input: 1, query: 2 } as const satisfies Record<BufferSpec['kind'], number>;
const rowKindCodes = { token: 0, logit: 1 } as const satisfies Record<BufferSpec['rows'], number>;

/** Code of an absent operand. */
const absent = -1;

export interface EncodedProgram {
  readonly ints: Int32Array;
  readonly floats: Float64Array;
}

export function encodeProgram(program: Program, bindings: ProgramBindings): EncodedProgram {
  const ints = [
    encodingVersion,
    kvTypeCodes[program.kvType],
    bindings.tokensMax,
    bindings.logitRowsMax,
    bindings.contextMax,
    program.buffers.length,
    program.ops.length,
    program.logits ?? absent,
    program.hidden?.end ?? program.ops.length,
    program.groups.length,
    ...program.groups.flatMap(({ layers, window }) => [layers, window ?? absent]),
  ];
  const lifetimes = bufferLifetimes(program);
  const queries = queryHeads(program);
  program.buffers.forEach((spec, id) => {
    const form = spec.kind === 'input' ? inputFormCodes[spec.form] : 0;
    const { heads, headDim } = queries.get(id) ?? { heads: spec.kind === 'query' ? 1 : 0, headDim: spec.columns };
    const { first, last, alone } = lifetimes[id] as BufferLifetime;
    ints.push(
      bufferKindCodes[spec.kind],
      rowKindCodes[spec.rows],
      spec.columns,
      form,
      heads,
      headDim,
      first,
      last,
      Number(alone),
    );
  });
  const floats: number[] = [];
  for (const op of program.ops) {
    const encoded = encodeOp(op);
    ints.push(opCodes[op.kind], ...encoded.ints);
    floats.push(...encoded.floats);
  }
  return { ints: Int32Array.from(ints), floats: Float64Array.from(floats) };
}

function encodeOp(op: Op): { readonly ints: readonly number[]; readonly floats: readonly number[] } {
  switch (op.kind) {
    case 'embed': {
      const positions = [op.positions?.offset ?? 0, op.positions?.types ?? 1, op.positions?.table ?? absent];
      return { ints: [op.table, op.out, ...positions], floats: [op.scale] };
    }
    case 'norm': {
      const vectors = [op.gain, op.bias ?? absent];
      return { ints: [normStyleCodes[op.style], op.x, op.residual ?? absent, ...vectors, op.out], floats: [op.eps] };
    }
    case 'linear':
      return { ints: [op.weight, op.bias ?? absent, op.x, op.out], floats: [] };
    case 'glu':
    case 'activate':
      return { ints: [activationCodes[op.activation], op.x, op.out], floats: [] };
    case 'convert':
    case 'gather':
      return { ints: [op.x, op.out], floats: [] };
    case 'add':
      return { ints: [op.x, op.residual], floats: [] };
    case 'waitRows':
      return { ints: [op.out], floats: [] };
    case 'rowsReady':
      return { ints: [op.x], floats: [] };
    case 'softcap':
      return { ints: [op.x], floats: [op.cap] };
    case 'waitLayer':
      return { ints: [op.layer], floats: [] };
    case 'layerReady':
      return { ints: [op.layers], floats: [] };
    case 'qkv': {
      const norms = [op.qNorm ?? absent, op.kNorm ?? absent];
      return { ints: [...pagedLayer(op), op.rope ?? absent, op.rotaryDim, ...norms, op.x, op.out], floats: [op.eps] };
    }
    case 'sendQ': {
      const ints = [op.call, ...pagedLayer(op), op.rope ?? absent, op.rotaryDim, op.qNorm ?? absent, op.x, op.out];
      return { ints: [...ints, op.slopes ?? absent], floats: [op.eps, op.scale, op.softcap ?? 0] };
    }
    case 'sendKV': {
      const rotation = [op.rope ?? absent, op.rotaryDim, op.kNorm ?? absent];
      return { ints: [op.call, ...pagedLayer(op), ...rotation, op.x, op.out], floats: [op.eps] };
    }
    case 'waitPartial': {
      const sent = [op.sent?.q ?? absent, op.sent?.kv ?? absent];
      return { ints: [op.call, ...pagedLayer(op), ...sent, op.out], floats: [] };
    }
    case 'attention': {
      const stats = [op.stats?.max ?? absent, op.stats?.sum ?? absent];
      const scores = [op.slopes ?? absent, op.window ?? absent, Number(op.bidirectional === true)];
      return { ints: [...pagedLayer(op), op.q, ...stats, op.out, ...scores], floats: [op.scale, op.softcap ?? 0] };
    }
    case 'merge': {
      const parts = op.parts.flatMap((part) => [part.o, part.max, part.sum]);
      return { ints: [op.heads, op.headDim, op.out, op.parts.length, ...parts], floats: [] };
    }
    default:
      assertNever(op);
  }
}

function pagedLayer(op: HeadShape & { readonly layer: LayerRef }): readonly number[] {
  return [op.layer.group, op.layer.index, op.heads, op.kvHeads, op.headDim];
}

interface BufferLifetime {
  readonly first: number;
  readonly last: number;
  /** True if no other buffer may share its memory: it is an input or output of the program. */
  readonly alone: boolean;
}

/**
 * The ops between which each buffer holds data. A buffer that is read before any op writes it, or not read after the
 * last write, lives throughout.
 */
function bufferLifetimes(program: Program): readonly BufferLifetime[] {
  const end = program.ops.length;
  return program.buffers.map((_, id) => {
    const reads = program.ops.flatMap((op, index) => (opReads(op).includes(id) ? [index] : []));
    const writes = program.ops.flatMap((op, index) => (opWrites(op).includes(id) ? [index] : []));
    const firstRead = reads.at(0) ?? end;
    const firstWrite = writes.at(0) ?? end;
    const lastRead = reads.at(-1) ?? -1;
    const lastWrite = writes.at(-1) ?? -1;
    const isInput = firstRead <= firstWrite;
    const isOutput = lastWrite >= lastRead || isKept(program, id) || program.ops[lastRead]?.kind === 'rowsReady';
    if (isInput || isOutput) return { first: 0, last: end, alone: true };
    return { first: firstWrite, last: lastRead, alone: false };
  });
}

/** Heads of each query buffer, from the ops that use it. */
function queryHeads(program: Program): ReadonlyMap<BufferId, { readonly heads: number; readonly headDim: number }> {
  const heads = new Map<BufferId, { heads: number; headDim: number }>();
  for (const op of program.ops) {
    if (op.kind === 'qkv' || op.kind === 'sendQ') heads.set(op.out, { heads: op.heads, headDim: op.headDim });
    if (op.kind === 'attention') heads.set(op.q, { heads: op.heads, headDim: op.headDim });
    if (op.kind === 'sendKV') heads.set(op.out, { heads: 2 * op.kvHeads, headDim: op.headDim });
  }
  return heads;
}
