// Layer groups of programs in which some layers are sparse.
import { expect, test } from 'vitest';
import { compile } from '../../src/graph/compile.ts';
import { fuse } from '../../src/graph/fuse.ts';
import type { LayerRef, Program } from '../../src/graph/program.ts';
import { modelWorkerGraph } from '../../src/graph/slice.ts';
import { withSparseLayers } from '../../src/graph/sparse-layers.ts';
import { buildGraph } from '../../src/models/registry.ts';
import type { ModelConfig } from '../../src/util/model-config.ts';
import { smallConfig } from '../models/configs.ts';

const program = (config: ModelConfig): Program =>
  compile(fuse(buildGraph(config)), { inputForm: () => 'bf16', kvType: 'bf16' }).program;

/** Of ops of one kind, in order. */
const layersOf = ({ ops }: Program, kind: string): readonly LayerRef[] =>
  ops.flatMap((op) => (op.kind === kind && 'layer' in op && typeof op.layer === 'object' ? [op.layer] : []));

test('sparse layers become a group, in all ops that access their pages', () => {
  const split = withSparseLayers(program({ ...smallConfig, layers: 4 }), (layer) => layer === 1 || layer === 3);
  expect(split.groups).toEqual([
    { layers: 2, window: undefined },
    { layers: 2, window: undefined, sparse: true },
  ]);
  const refs = [0, 1, 0, 1].map((group, layer) => ({ group, index: Math.floor(layer / 2) }));
  expect(layersOf(split, 'qkv')).toEqual(refs);
  expect(layersOf(split, 'attention')).toEqual(refs);
});

test('a program with sparse layers alone, or with none, keeps one group', () => {
  const plain = program(smallConfig);
  const all = withSparseLayers(plain, () => true);
  expect(all.groups).toEqual([{ layers: 3, window: undefined, sparse: true }]);
  expect(all.ops).toEqual(plain.ops);
  expect(withSparseLayers(plain, () => false)).toEqual(plain);
});

test('layers with a window stay in their group', () => {
  const attention = { ...smallConfig.attention, window: 32, layers: ['sliding', 'full', 'sliding'] as const };
  const { groups } = withSparseLayers(program({ ...smallConfig, architecture: 'gemma2', attention }), () => true);
  expect(groups).toEqual([
    { layers: 2, window: 32 },
    { layers: 1, window: undefined, sparse: true },
  ]);
});

test('programs that leave attention to attention workers are split alike', () => {
  const graph = fuse(modelWorkerGraph(buildGraph(smallConfig)));
  const { program: plain } = compile(graph, { inputForm: () => 'bf16', kvType: 'bf16' });
  const split = withSparseLayers(plain, (layer) => layer > 0);
  for (const kind of ['sendQ', 'sendKV', 'waitPartial'])
    expect(layersOf(split, kind).map(({ group }) => group)).toEqual([0, 1, 1]);
});
