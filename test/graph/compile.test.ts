// Programs: storages match their readers, weights are shared, and planned buffers never hold two live tensors.
import { expect, test } from 'vitest';
import { GraphBuilder } from '../../src/graph/builder.ts';
import { compile } from '../../src/graph/compile.ts';
import { fuse } from '../../src/graph/fuse.ts';
import { opReads, opWrites, planBuffers } from '../../src/graph/plan.ts';
import type { BufferId, InputForm, Op, Program } from '../../src/graph/program.ts';
import { buildGraph } from '../../src/models/registry.ts';
import type { ModelConfig } from '../../src/util/model-config.ts';
import { smallConfig } from '../models/configs.ts';

function compiled(
  config: ModelConfig,
  inputForm: (names: readonly string[]) => InputForm = () => 'bf16',
  context?: number,
) {
  return compile(fuse(buildGraph(config, context)), { inputForm, kvType: 'bf16' });
}

const gemma: ModelConfig = {
  ...smallConfig,
  architecture: 'gemma2',
  norm: { eps: 1e-6, gainOffset: 1 },
  activation: 'gelu_tanh',
  positions: {
    kind: 'rope',
    rotaryDim: 16,
    rope: { theta: 10_000, scaling: { kind: 'none' } },
    slidingRope: { theta: 100, scaling: { kind: 'none' } },
  },
  attention: { scale: 0.125, softcap: 20, window: 32, layers: ['sliding', 'full', 'sliding'] },
  logitSoftcap: 15,
};

const layerNormed: ModelConfig = {
  ...smallConfig,
  kvHeads: 4,
  biases: { qkv: true, attentionOutput: true, mlp: true },
  activation: 'gelu',
};

function kinds(ops: readonly Op[]): string[] {
  return ops.map((op) => op.kind);
}

test('norm, attention and glu write the input form of the linear that reads them', () => {
  const { program } = compiled(smallConfig);
  const layer = [
    'norm',
    'linear',
    'qkv',
    'waitLayer',
    'layerReady',
    'attention',
    'linear',
    'norm',
    'linear',
    'glu',
    'linear',
  ];
  expect(kinds(program.ops.slice(0, 23))).toEqual(['embed', ...layer, ...layer]);
  for (const op of program.ops) {
    if (op.kind === 'norm' || op.kind === 'glu')
      expect(program.buffers[op.out]).toMatchObject({ kind: 'input', form: 'bf16' });
    if (op.kind === 'linear') expect(program.buffers[op.x]).toMatchObject({ kind: 'input', form: 'bf16' });
  }
  const attention = program.ops.filter((op) => op.kind === 'attention');
  expect(attention.map((op) => op.layer)).toEqual([0, 1, 2].map((index) => ({ group: 0, index })));
  const ready = program.ops.filter((op) => op.kind === 'layerReady');
  expect(ready.map(({ layers }) => layers)).toEqual([1, 2, 3]);
});

test('the last layer gathers the rows that need logits, and converts them', () => {
  const { program } = compiled(smallConfig);
  const last = program.ops.findLastIndex((op) => op.kind === 'attention');
  const rest = ['gather', 'convert', 'linear', 'gather', 'norm', 'linear', 'glu', 'linear', 'norm', 'linear'];
  expect(kinds(program.ops.slice(last + 1))).toEqual(rest);
  expect(program.buffers[program.logits ?? -1]).toEqual({ rows: 'logit', columns: 96, kind: 'f32' });
});

test('each linear layer has its own input form', () => {
  const { program, linears } = compiled(smallConfig, (names) =>
    names.some((name) => name.includes('down')) ? 'bf16' : 'int8',
  );
  for (const op of program.ops) {
    if (op.kind !== 'linear') continue;
    const down = linears[op.weight].segments[0].name.includes('down');
    expect(program.buffers[op.x]).toMatchObject({ kind: 'input', form: down ? 'bf16' : 'int8' });
  }
});

test('a tied head and the embedding share one linear; an untied head has its own', () => {
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
    offset: 0,
  });
});

test('layers with one window form a group, in the order in which windows appear', () => {
  const { program } = compiled(gemma);
  expect(program.groups).toEqual([
    { layers: 2, window: 32 },
    { layers: 1, window: undefined },
  ]);
  const attention = program.ops.filter((op) => op.kind === 'attention');
  expect(attention.map(({ layer, window }) => [layer.group, layer.index, window])).toEqual([
    [0, 0, 32],
    [1, 0, undefined],
    [0, 1, 32],
  ]);
  expect(compiled(gemma, undefined, 32).program.groups).toEqual([{ layers: 3, window: undefined }]);
});

test('softcaps of scores and logits, and gains of 1 + w', () => {
  const { program, vectors } = compiled(gemma);
  expect(program.ops.at(-1)).toEqual({ kind: 'softcap', cap: 15, x: program.logits });
  for (const op of program.ops) {
    if (op.kind === 'attention') expect(op).toMatchObject({ softcap: 20, scale: 0.125 });
    if (op.kind === 'norm') expect(vectors[op.gain]).toMatchObject({ offset: 1 });
  }
});

test('local layers use their own RoPE', () => {
  const { program, vectors } = compiled({ ...gemma, architecture: 'gemma3' });
  const thetas = program.ops.flatMap((op) => (op.kind === 'qkv' && op.rope !== undefined ? [vectors[op.rope]] : []));
  expect(thetas.map((vector) => vector.kind === 'rope' && vector.spec.theta)).toEqual([100, 10_000, 100]);
});

test('parallel attention and MLP: one separate add, one fused into the next norm', () => {
  const config: ModelConfig = { ...layerNormed, architecture: 'gpt_neox', parallelResidual: true };
  const { program } = compiled(config);
  const layer = [
    'norm',
    'linear',
    'qkv',
    'waitLayer',
    'layerReady',
    'attention',
    'linear',
    'norm',
    'linear',
    'activate',
    'linear',
    'add',
  ];
  expect(kinds(program.ops.slice(0, 13))).toEqual(['embed', ...layer]);
  const add = program.ops.find((op) => op.kind === 'add');
  const next = program.ops.slice(13).find((op) => op.kind === 'norm');
  expect(next?.residual).toBe(add?.residual);
  const plain = compiled({ ...config, parallelResidual: false });
  expect(kinds(plain.program.ops)).not.toContain('add');
});

test('learned positions are a table of the embedding, ALiBi slopes a vector of attention', () => {
  const learned = compiled({ ...layerNormed, architecture: 'opt', positions: { kind: 'learned', offset: 2 } });
  const embed = learned.program.ops.find((op) => op.kind === 'embed');
  const table = { name: 'model.decoder.embed_positions.weight', rows: 258, offset: 2 };
  expect(embed?.positions?.offset).toBe(2);
  expect(learned.vectors[embed?.positions?.table ?? -1]).toEqual({ kind: 'positions', table, columns: 64 });
  const alibi = compiled({ ...layerNormed, architecture: 'bloom', positions: { kind: 'alibi' } });
  const attention = alibi.program.ops.find((op) => op.kind === 'attention');
  expect(alibi.vectors[attention?.slopes ?? -1]).toEqual({ kind: 'slopes', heads: 4 });
});

test('a tensor that is read again is not changed in place', () => {
  const b = new GraphBuilder();
  const x = b.embed('embed', 10, 16);
  const y = b.linear(x, 'w', 16);
  const graph = b.head(b.add(b.add(b.add(x, y), x), y), 'head', 10);
  expect(() => compile(graph, { inputForm: () => 'f32', kvType: 'f32' })).toThrow('changed in place is read again');
});

test('a sum replaces its other operand if the residual stream is read again', () => {
  const b = new GraphBuilder();
  const x = b.embed('embed', 10, 16);
  const y = b.linear(x, 'w', 16);
  const graph = b.head(b.add(b.add(x, y), x), 'head', 10);
  const { program } = compile(graph, { inputForm: () => 'bf16', kvType: 'f32' });
  const [embed, , product, first, second] = program.ops;
  const adds = [first, second].map((op) => (op.kind === 'add' ? [op.x, op.residual] : []));
  const [stream, projected] = [embed, product].map((op) => ('out' in op ? op.out : undefined));
  expect(adds).toEqual([
    [stream, projected],
    [stream, projected],
  ]);
});

test('all layers share one RoPE table', () => {
  const { program, vectors } = compiled(smallConfig);
  const tables = new Set(program.ops.filter((op) => op.kind === 'qkv').map((op) => op.rope));
  expect(tables.size).toBe(1);
  expect(vectors[[...tables][0] ?? -1]).toEqual({
    kind: 'rope',
    spec: { theta: 10_000, scaling: { kind: 'none' }, rotaryDim: 16 },
  });
});

/** The op that wrote each buffer an op reads. */
function sources(program: Program, place: (buffer: BufferId) => BufferId): number[][] {
  const writer = new Map<BufferId, number>();
  return program.ops.map((op, index) => {
    const read = opReads(op).map((buffer) => writer.get(place(buffer)) ?? -1);
    for (const buffer of opWrites(op)) writer.set(place(buffer), index);
    return read;
  });
}

test('planned buffers give every op the same values as separate buffers', () => {
  const { program } = compiled({ ...smallConfig, layers: 5 });
  const { buffers, place } = planBuffers(program);
  expect(sources(program, (buffer) => place[buffer])).toEqual(sources(program, (buffer) => buffer));
  expect(buffers.length).toBeLessThan(program.buffers.length / 3);
  expect(place.map((id) => buffers[id])).toEqual(program.buffers);
});

test('inputs and outputs of the program share no memory', () => {
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
    planBuffers({
      buffers: [spec, spec, spec, spec],
      ops,
      logits: undefined,
      hidden: undefined,
      kvType: 'f32',
      groups: [],
    }).place,
  ).toEqual([0, 2, 3, 1]);
});
