// Programs as integers and floats, the form that native/encoded.hpp reads: both files change together, with the version.
import { opReads, opWrites } from '../graph/plan.ts';
import type { BufferId, BufferSpec, HeadShape, LayerRef, Op, Program } from '../graph/program.ts';
import type { ProgramBindings } from './backend.ts';
import { inputFormCodes, kvTypeCodes } from './codes.ts';

export const encodingVersion = 1;

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
} as const satisfies Partial<Record<Op['kind'], number>>;
const bufferKindCodes = { f32: 0, input: 1, query: 2 } as const satisfies Record<BufferSpec['kind'], number>;
const rowKindCodes = { token: 0, logit: 1 } as const satisfies Record<BufferSpec['rows'], number>;

/** Stands for an operand that an op goes without. */
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
  ];
  const lives = bufferLives(program);
  const queries = queryHeads(program);
  program.buffers.forEach((spec, id) => {
    const form = spec.kind === 'input' ? inputFormCodes[spec.form] : 0;
    const { heads, headDim } = queries.get(id) ?? { heads: spec.kind === 'query' ? 1 : 0, headDim: spec.columns };
    const { first, last, alone } = lives[id] as BufferLife;
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
    if (op.kind === 'activate' || op.kind === 'add' || op.kind === 'softcap') throw notYet(op.kind);
    ints.push(opCodes[op.kind], ...encoded.ints);
    floats.push(...encoded.floats);
  }
  return { ints: Int32Array.from(ints), floats: Float64Array.from(floats) };
}

function notYet(what: string): Error {
  return new Error(`Cannot create program: the native kernels know no such op: ${what}`);
}

function encodeOp(op: Op): { readonly ints: readonly number[]; readonly floats: readonly number[] } {
  switch (op.kind) {
    case 'activate':
    case 'add':
    case 'softcap':
      throw notYet(op.kind);
    case 'embed':
      if (op.positions !== undefined) throw notYet('embed with positions');
      return { ints: [op.table, op.out], floats: [op.scale] };
    case 'norm':
      if (op.style !== 'rms' || op.bias !== undefined) throw notYet('layer norm');
      return { ints: [op.x, op.residual ?? absent, op.gain, op.out], floats: [op.eps] };
    case 'linear':
      return { ints: [op.weight, op.bias ?? absent, op.x, op.out], floats: [] };
    case 'glu':
      if (op.activation !== 'silu') throw notYet(`glu with ${op.activation}`);
      return { ints: [op.x, op.out], floats: [] };
    case 'convert':
    case 'gather':
      return { ints: [op.x, op.out], floats: [] };
    case 'qkv': {
      const norms = [op.qNorm ?? absent, op.kNorm ?? absent];
      return { ints: [...pagedLayer(op), op.rope ?? absent, op.rotaryDim, ...norms, op.x, op.out], floats: [op.eps] };
    }
    case 'attention': {
      if (op.window !== undefined || op.softcap !== undefined || op.slopes !== undefined)
        throw notYet('attention with a window, a cap or slopes');
      const stats = [op.stats?.max ?? absent, op.stats?.sum ?? absent];
      return { ints: [...pagedLayer(op), op.q, ...stats, op.out], floats: [op.scale] };
    }
    case 'merge': {
      const parts = op.parts.flatMap((part) => [part.o, part.max, part.sum]);
      return { ints: [op.heads, op.headDim, op.out, op.parts.length, ...parts], floats: [] };
    }
  }
}

function pagedLayer(op: HeadShape & { readonly layer: LayerRef }): readonly number[] {
  return [op.layer.group, op.layer.index, op.heads, op.kvHeads, op.headDim];
}

interface BufferLife {
  readonly first: number;
  readonly last: number;
  /** No other buffer may use its memory: it comes from outside, or goes there. */
  readonly alone: boolean;
}

/** The ops between which each buffer holds something; a buffer that no op writes before reading, or reads after writing, lives throughout. */
function bufferLives(program: Program): readonly BufferLife[] {
  const end = program.ops.length;
  return program.buffers.map((_, id) => {
    const reads = program.ops.flatMap((op, index) => (opReads(op).includes(id) ? [index] : []));
    const writes = program.ops.flatMap((op, index) => (opWrites(op).includes(id) ? [index] : []));
    const firstRead = reads.at(0) ?? end;
    const firstWrite = writes.at(0) ?? end;
    const lastRead = reads.at(-1) ?? -1;
    const lastWrite = writes.at(-1) ?? -1;
    const isInput = firstRead <= firstWrite;
    const isOutput = lastWrite >= lastRead || id === program.logits;
    if (isInput || isOutput) return { first: 0, last: end, alone: true };
    return { first: firstWrite, last: lastRead, alone: false };
  });
}

/** Heads of each query buffer, from the ops that touch it. */
function queryHeads(program: Program): ReadonlyMap<BufferId, { readonly heads: number; readonly headDim: number }> {
  const heads = new Map<BufferId, { heads: number; headDim: number }>();
  for (const op of program.ops) {
    const query = op.kind === 'qkv' ? op.out : op.kind === 'attention' ? op.q : undefined;
    if (query !== undefined && (op.kind === 'qkv' || op.kind === 'attention')) {
      heads.set(query, { heads: op.heads, headDim: op.headDim });
    }
  }
  return heads;
}
