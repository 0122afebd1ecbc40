// The checkpoint tensors that each architecture reads, and refused configurations.
import { expect, test } from 'vitest';
import type { Graph, Node } from '../../src/graph/graph.ts';
import { buildGraph } from '../../src/models/registry.ts';
import { smallConfig } from './configs.ts';

/** Names of all stored tensors that a graph reads. */
function storedNames(graph: Graph): string[] {
  return graph.nodes.flatMap((node: Node): string[] => {
    if (node.kind === 'embed') return [node.weight.name];
    if (node.kind === 'norm') return [node.gain.name, node.bias].filter((name) => name !== undefined);
    if (node.kind === 'linear')
      return node.segments.flatMap(({ name, bias }) => (bias === undefined ? [name] : [name, bias]));
    if (node.kind === 'attention') return [node.qNorm?.name, node.kNorm?.name].filter((name) => name !== undefined);
    return [];
  });
}

function layerNames(config: Parameters<typeof buildGraph>[0]): string[] {
  const at = 'model.layers.1.';
  return storedNames(buildGraph(config))
    .filter((name) => name.startsWith(at))
    .map((name) => name.slice(at.length));
}

const plainLayer = [
  'input_layernorm.weight',
  'self_attn.q_proj.weight',
  'self_attn.k_proj.weight',
  'self_attn.v_proj.weight',
  'self_attn.o_proj.weight',
  'post_attention_layernorm.weight',
  'mlp.gate_proj.weight',
  'mlp.up_proj.weight',
  'mlp.down_proj.weight',
];

test('llama reads nine tensors a layer, and its head from the embedding when tied', () => {
  expect(layerNames(smallConfig)).toEqual(plainLayer);
  const names = storedNames(buildGraph(smallConfig));
  expect(names.filter((name) => name === 'model.embed_tokens.weight')).toHaveLength(2);
  expect(storedNames(buildGraph({ ...smallConfig, tieEmbeddings: false })).at(-1)).toBe('lm_head.weight');
});

test('qwen2 adds biases to q, k and v only', () => {
  const extra = layerNames({ ...smallConfig, architecture: 'qwen2' }).filter((name) => !plainLayer.includes(name));
  expect(extra).toEqual(['self_attn.q_proj.bias', 'self_attn.k_proj.bias', 'self_attn.v_proj.bias']);
});

test('qwen3 adds gains for q and k, and has an independent head size', () => {
  const config = { ...smallConfig, architecture: 'qwen3', headDim: 32 };
  const extra = layerNames(config).filter((name) => !plainLayer.includes(name));
  expect(extra).toEqual(['self_attn.q_norm.weight', 'self_attn.k_norm.weight']);
  const q = buildGraph(config).nodes.find((node) => node.kind === 'linear');
  expect(q?.segments).toEqual([
    { name: 'model.layers.0.self_attn.q_proj.weight', rows: 128, columns: 64, bias: undefined },
  ]);
});

test('an unknown architecture is refused with a list of the known ones', () => {
  expect(() => buildGraph({ ...smallConfig, architecture: 'mamba' })).toThrow(
    'Cannot build the model: unknown architecture: mamba (known: bert, bloom, gemma2, gemma3, gpt2, gpt_neox, llama, mistral, nomic_bert, opt, phi3, qwen2, qwen3)',
  );
  expect(() => buildGraph({ ...smallConfig, architecture: 'constructor' })).toThrow('unknown architecture');
});

test('an odd head size is refused', () => {
  expect(() => buildGraph({ ...smallConfig, headDim: 15 })).toThrow('an odd head_dim: 15');
});

test('phi3 reads one matrix for q, k and v and one for gate and up', () => {
  expect(layerNames({ ...smallConfig, architecture: 'phi3' })).toEqual([
    'input_layernorm.weight',
    'self_attn.qkv_proj.weight',
    'self_attn.o_proj.weight',
    'post_attention_layernorm.weight',
    'mlp.gate_up_proj.weight',
    'mlp.down_proj.weight',
  ]);
});

test('an architecture with learned positions refuses a configuration with RoPE', () => {
  expect(() => buildGraph({ ...smallConfig, architecture: 'gpt2' })).toThrow(
    'gpt2 requires learned positions, not rope',
  );
});
