// Slices as a person reads them: names, bytes per token, and runs of slices that are alike.
import { expect, test } from 'vitest';
import { groupsOf, sliceReports, titleOf } from '../../src/graph/slice-report.ts';
import { buildGraph } from '../../src/models/registry.ts';
import { smallConfig } from '../models/configs.ts';

const sliding = ['sliding', 'full', 'sliding'] as const;

test('operations have the names of their weights; adds and activations those of the nearest weights before them', () => {
  const positions = { kind: 'learned', offset: 0 } as const;
  const [first, second] = sliceReports(buildGraph({ ...smallConfig, architecture: 'gpt2', kvHeads: 4, positions }));
  expect(first.operations).toEqual([
    'embed transformer.wte',
    'norm transformer.h.0.ln_1',
    'linear transformer.h.0.attn.c_attn',
    'sendQ',
    'sendKV',
  ]);
  expect(second.operations.slice(0, 7)).toEqual([
    'waitPartial',
    'linear transformer.h.0.attn.c_proj',
    'add transformer.h.0.attn.c_proj',
    'norm transformer.h.0.ln_2',
    'linear transformer.h.0.mlp.c_fc',
    'activate transformer.h.0.mlp.c_fc',
    'linear transformer.h.0.mlp.c_proj',
  ]);
  expect(second.carried).toEqual([{ tensor: 'add transformer.h.0.mlp.c_proj', bytesPerToken: 256 }]);
});

test('attention has its window and the bytes that are sent and returned', () => {
  const attention = { ...smallConfig.attention, window: 32, layers: sliding };
  const reports = sliceReports(buildGraph({ ...smallConfig, architecture: 'gemma2', attention }));
  expect(reports.map((report) => report.attention?.window)).toEqual([32, undefined, 32, undefined]);
  expect(reports[0].attention).toMatchObject({ qBytesPerToken: 128, kvBytesPerToken: 128, partialBytesPerToken: 128 });
});

test('consecutive slices that differ in their layer alone are one group', () => {
  const groups = groupsOf(sliceReports(buildGraph(smallConfig)));
  expect(groups.map(titleOf)).toEqual(['Slice 0', 'Slices 1 to 2 (N)', 'Slice 3']);
  expect(groups[1].operations[1]).toBe('linear model.layers.N-1.self_attn.o_proj');
  expect(groups[1].carried).toEqual(['add model.layers.N-1.mlp.down_proj']);
  expect(groups[2].operations[1]).toBe('linear model.layers.2.self_attn.o_proj');
});
