// Programs: forms meet their readers, weights are shared, and planned buffers never mix two living tensors.
import { expect, test } from 'vitest';
import { compile } from '../../src/graph/compile.ts';
import { fuse } from '../../src/graph/fuse.ts';
import { opReads, opWrites, planBuffers } from '../../src/graph/plan.ts';
import type { BufferId, InputForm, Op, Program } from '../../src/graph/program.ts';
import { buildGraph } from '../../src/models/registry.ts';
import type { ModelConfig } from '../../src/util/model-config.ts';
import { smallConfig } from '../models/configs.ts';

function compiled(config: ModelConfig, inputForm: (names: readonly string[]) => InputForm = () => 'bf16') {
  return compile(fuse(buildGraph(config)), { inputForm, kvType: 'bf16' });
}

function kinds(ops: readonly Op[]): string[] {
  return ops.map((op) => op.kind);
}

test('norm, attention and glu write straight in the form of the linear that reads them', () => {
  const { program } = compiled(smallConfig);
  const layer = ['norm', 'linear', 'qkv', 'attention', 'linear', 'norm', 'linear', 'glu', 'linear'];
  expect(kinds(program.ops.slice(0, 19))).toEqual(['embed', ...layer, ...layer]);
  for (const op of program.ops) {
    if (op.kind === 'norm' || op.kind === 'glu')
      expect(program.buffers[op.out]).toMatchObject({ kind: 'input', form: 'bf16' });
    if (op.kind === 'linear') expect(program.buffers[op.x]).toMatchObject({ kind: 'input', form: 'bf16' });
  }
  const attention = program.ops.filter((op) => op.kind === 'attention');
  expect(attention.map((op) => op.layer)).toEqual([0, 1, 2].map((index) => ({ group: 0, index })));
});

test('the last layer gathers the rows that need logits, and converts them', () => {
  const { program } = compiled(smallConfig);
  const last = program.ops.findLastIndex((op) => op.kind === 'attention');
  const rest = ['gather', 'convert', 'linear', 'gather', 'norm', 'linear', 'glu', 'linear', 'norm', 'linear'];
  expect(kinds(program.ops.slice(last + 1))).toEqual(rest);
  expect(program.buffers[program.logits ?? -1]).toEqual({ rows: 'logit', columns: 96, kind: 'f32' });
});

test('every layer of linears has its own form', () => {
  const { program, linears } = compiled(smallConfig, (names) =>
    names.some((name) => name.includes('down')) ? 'bf16' : 'int8',
  );
  for (const op of program.ops) {
    if (op.kind !== 'linear') continue;
    const down = linears[op.weight].segments[0].name.includes('down');
    expect(program.buffers[op.x]).toMatchObject({ kind: 'input', form: down ? 'bf16' : 'int8' });
  }
});

test('a tied head and the embedding are one linear; an untied one is its own', () => {
  const tied = compiled(smallConfig);
  const embed = tied.program.ops[0];
  const head = tied.program.ops.at(-1);
  expect(embed.kind === 'embed' && head?.kind === 'linear' && embed.table === head.weight).toBe(true);
  expect(compiled({ ...smallConfig, tieEmbeddings: false }).linears.length).toBe(tied.linears.length + 1);
});

test('biases of merged linears are one vector, zeros where a segment has none', () => {
  const { program, vectors } = compiled({ ...smallConfig, architecture: 'qwen2' });
  const first = program.ops.find((op) => op.kind === 'linear');
  const names = ['q', 'k', 'v'].map((which) => `model.layers.0.self_attn.${which}_proj.bias`);
  const lengths = [64, 32, 32];
  expect(vectors[first?.bias ?? -1]).toEqual({
    kind: 'tensors',
    parts: names.map((name, i) => ({ name, length: lengths[i] })),
  });
});

test('all layers share one rope table', () => {
  const { program, vectors } = compiled(smallConfig);
  const tables = new Set(program.ops.filter((op) => op.kind === 'qkv').map((op) => op.rope));
  expect(tables.size).toBe(1);
  expect(vectors[[...tables][0] ?? -1]).toEqual({
    kind: 'rope',
    spec: { theta: 10_000, scaling: { kind: 'none' }, rotaryDim: 16 },
  });
});

/** Which op wrote what each op reads, buffer by buffer. */
function sources(program: Program, place: (buffer: BufferId) => BufferId): number[][] {
  const writer = new Map<BufferId, number>();
  return program.ops.map((op, index) => {
    const read = opReads(op).map((buffer) => writer.get(place(buffer)) ?? -1);
    for (const buffer of opWrites(op)) writer.set(place(buffer), index);
    return read;
  });
}

test('planned buffers give every op the same values as buffers of their own', () => {
  const { program } = compiled({ ...smallConfig, layers: 5 });
  const { buffers, place } = planBuffers(program);
  expect(sources(program, (buffer) => place[buffer])).toEqual(sources(program, (buffer) => buffer));
  expect(buffers.length).toBeLessThan(program.buffers.length / 3);
  expect(place.map((id) => buffers[id])).toEqual(program.buffers);
});

test('what the outside may read or write shares no memory', () => {
  const { program } = compiled({ ...smallConfig, vocabSize: smallConfig.hiddenSize });
  const { place } = planBuffers(program);
  const logits = program.logits ?? -1;
  expect(place.filter((id) => id === place[logits])).toHaveLength(1);
  const spec = { rows: 'token', columns: 8, kind: 'f32' } as const;
  const plainNorm = { kind: 'norm', style: 'rms', bias: undefined } as const;
  const ops: Op[] = [
    { ...plainNorm, x: 0, residual: undefined, gain: 0, eps: 0, out: 1 },
    { ...plainNorm, x: 1, residual: undefined, gain: 0, eps: 0, out: 2 },
    { ...plainNorm, x: 2, residual: undefined, gain: 0, eps: 0, out: 3 },
  ];
  expect(
    planBuffers({ buffers: [spec, spec, spec, spec], ops, logits: undefined, kvType: 'f32', groups: [] }).place,
  ).toEqual([0, 2, 3, 1]);
});
