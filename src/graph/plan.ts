// Buffer planning: tensors whose lives do not overlap share a buffer of the same kind.
import type { BufferId, BufferSpec, Op, Program } from './program.ts';

/** Buffers that an op reads. */
export function opReads(op: Op): readonly BufferId[] {
  switch (op.kind) {
    case 'embed':
      return [];
    case 'norm':
      return op.residual === undefined ? [op.x] : [op.x, op.residual];
    case 'linear':
    case 'glu':
    case 'convert':
    case 'qkv':
    case 'gather':
      return [op.x];
    case 'attention':
      return [op.q];
    case 'merge':
      return op.parts.flatMap((part) => [part.o, part.max, part.sum]);
  }
}

/** Buffers that an op writes. */
export function opWrites(op: Op): readonly BufferId[] {
  if (op.kind === 'norm' && op.residual !== undefined) return [op.out, op.residual];
  if (op.kind === 'attention' && op.stats !== undefined) return [op.out, op.stats.max, op.stats.sum];
  return [op.out];
}

/** The same op over renamed buffers. */
export function renameBuffers(op: Op, to: (buffer: BufferId) => BufferId): Op {
  switch (op.kind) {
    case 'embed':
      return { ...op, out: to(op.out) };
    case 'norm':
      return { ...op, x: to(op.x), residual: op.residual === undefined ? undefined : to(op.residual), out: to(op.out) };
    case 'attention': {
      const stats = op.stats === undefined ? undefined : { max: to(op.stats.max), sum: to(op.stats.sum) };
      return { ...op, q: to(op.q), stats, out: to(op.out) };
    }
    case 'merge':
      return { ...op, parts: op.parts.map((p) => ({ o: to(p.o), max: to(p.max), sum: to(p.sum) })), out: to(op.out) };
    default:
      return { ...op, x: to(op.x), out: to(op.out) };
  }
}

/** The same program with one buffer for all tensors of a kind that are never alive together. */
export function planBuffers(program: Program): Program {
  const lastUse = new Map<BufferId, number>();
  program.ops.forEach((op, index) => {
    for (const buffer of [...opReads(op), ...opWrites(op)]) lastUse.set(buffer, index);
  });
  if (program.logits !== undefined) lastUse.set(program.logits, program.ops.length);

  const buffers: BufferSpec[] = [];
  const free = new Map<string, BufferId[]>();
  const place = new Map<BufferId, BufferId>();
  const placed = (buffer: BufferId): BufferId => {
    const known = place.get(buffer);
    if (known !== undefined) return known;
    const spec = program.buffers[buffer];
    const id = free.get(keyOf(spec))?.pop() ?? buffers.push(spec) - 1;
    place.set(buffer, id);
    return id;
  };
  const ops = program.ops.map((op, index) => {
    const renamed = renameBuffers(op, placed);
    for (const buffer of new Set([...opReads(op), ...opWrites(op)])) {
      if (lastUse.get(buffer) !== index) continue;
      const key = keyOf(program.buffers[buffer]);
      free.set(key, [...(free.get(key) ?? []), placed(buffer)]);
    }
    return renamed;
  });
  return { ...program, buffers, ops, logits: program.logits === undefined ? undefined : placed(program.logits) };
}

function keyOf(spec: BufferSpec): string {
  return `${spec.rows} ${spec.columns} ${spec.kind} ${spec.kind === 'input' ? spec.form : ''}`;
}
