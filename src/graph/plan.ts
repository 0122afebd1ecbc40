// Buffer planning: which buffers an op reads and writes, and which buffers can share memory because their lifetimes are
// disjoint.
import type { BufferId, BufferSpec, Op, Program } from './program.ts';

/** Buffers that an op reads. */
export function opReads(op: Op): readonly BufferId[] {
  switch (op.kind) {
    case 'embed':
    case 'layerReady':
    case 'waitLayer':
      return [];
    case 'norm':
      return op.residual === undefined ? [op.x] : [op.x, op.residual];
    case 'linear':
    case 'glu':
    case 'activate':
    case 'softcap':
    case 'convert':
    case 'qkv':
    case 'gather':
    case 'rowsReady':
    case 'sendQ':
    case 'sendKV':
      return [op.x];
    case 'waitRows':
      return [op.out];
    case 'waitPartial':
      return op.sent === undefined ? [op.out] : [op.sent.q, op.sent.kv];
    case 'attention':
      return [op.q];
    case 'add':
      return [op.x, op.residual];
    case 'merge':
      return op.parts.flatMap((part) => [part.o, part.max, part.sum]);
  }
}

/** Buffers that an op writes. */
export function opWrites(op: Op): readonly BufferId[] {
  if (op.kind === 'layerReady' || op.kind === 'waitLayer' || op.kind === 'rowsReady') return [];
  if (op.kind === 'add') return [op.residual];
  if (op.kind === 'softcap') return [op.x];
  if (op.kind === 'norm' && op.residual !== undefined) return [op.out, op.residual];
  if (op.kind === 'attention' && op.stats !== undefined) return [op.out, op.stats.max, op.stats.sum];
  return [op.out];
}

/** True if the buffer is read after the last op. */
export function isKept({ logits, hidden }: Program, id: BufferId): boolean {
  return id === logits || id === hidden?.buffer;
}

export interface BufferPlan {
  readonly buffers: readonly BufferSpec[];
  /** Planned buffer of each buffer of the program. */
  readonly place: readonly BufferId[];
}

/**
 * Assigns one buffer to tensors of equal kind with disjoint lifetimes. Buffers that ops only read or only write stay
 * separate: they are the program's inputs and outputs.
 */
export function planBuffers(program: Program): BufferPlan {
  const end = program.ops.length;
  const firstWrite = program.buffers.map(() => end);
  const lastUse = program.buffers.map(() => -1);
  const lastRead = program.buffers.map(() => -1);
  for (const [index, op] of program.ops.entries()) {
    for (const id of opWrites(op)) firstWrite[id] = Math.min(firstWrite[id], index);
    for (const id of opReads(op)) lastRead[id] = index;
    for (const id of [...opReads(op), ...opWrites(op)]) lastUse[id] = index;
  }
  const unshared = program.buffers.map(
    (_, id) => firstWrite[id] === end || lastRead[id] < lastUse[id] || lastRead[id] === -1 || isKept(program, id),
  );

  const buffers: BufferSpec[] = [];
  const free = new Map<string, BufferId[]>();
  const place = program.buffers.map((spec, id) => (unshared[id] ? buffers.push(spec) - 1 : -1));
  for (const [index, op] of program.ops.entries()) {
    const touched = [...new Set([...opReads(op), ...opWrites(op)])].filter((id) => !unshared[id]);
    for (const id of touched) {
      if (place[id] === -1)
        place[id] = free.get(keyOf(program.buffers[id]))?.pop() ?? buffers.push(program.buffers[id]) - 1;
    }
    for (const id of touched.filter((used) => lastUse[used] === index)) {
      const key = keyOf(program.buffers[id]);
      free.set(key, [...(free.get(key) ?? []), place[id]]);
    }
  }
  return { buffers, place };
}

function keyOf(spec: BufferSpec): string {
  return `${spec.rows} ${spec.columns} ${spec.kind} ${spec.kind === 'input' ? spec.form : ''}`;
}
