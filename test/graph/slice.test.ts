// Slices carry the fewest bytes, compute what the whole model computes, and send in the right order.
import { describe, expect, test } from 'vitest';
import { GraphBuilder } from '../../src/graph/builder.ts';
import { compile } from '../../src/graph/compile.ts';
import { fuse } from '../../src/graph/fuse.ts';
import {
  type AttentionNode,
  type Graph,
  type Node,
  nodeInputs,
  nodeOutputs,
  type TensorId,
} from '../../src/graph/graph.ts';
import { bytesPerToken, type ModelSlice, modelWorkerGraph, slice } from '../../src/graph/slice.ts';
import { buildGraph, knownArchitectures } from '../../src/models/registry.ts';
import type { ModelConfig } from '../../src/util/model-config.ts';
import { Prng } from '../../src/util/prng.ts';
import { smallConfig } from '../models/configs.ts';

const shape = { heads: 2, kvHeads: 1, headDim: 8 };
const hiddenBytes = 4 * smallConfig.hiddenSize;

function kinds(graph: Graph): Node['kind'][] {
  return graph.nodes.map(({ kind }) => kind);
}

/** The last word of the weights of each node, or its kind. */
function named({ nodes }: Graph): string[] {
  return nodes.map((node) => {
    const name = node.kind === 'linear' ? node.segments[0].name : node.kind === 'norm' ? node.gain.name : undefined;
    return name?.split('.').at(-2) ?? node.kind;
  });
}

/** What each tensor holds, as a text of everything it was computed from. */
type Values = Map<TensorId, number>;

/** Evaluates graphs symbolically: equal computations have equal numbers. */
class Symbols {
  readonly #numbers = new Map<string, number>();
  /** What a layer's attention was sent. */
  readonly #sent = new Map<string, { q?: readonly number[]; kv?: readonly number[] }>();

  run({ nodes }: Graph, values: Values): void {
    for (const node of nodes) this.#runNode(node, values);
  }

  #runNode(node: Node, values: Values): void {
    const inputs = nodeInputs(node).map((tensor) => {
      const value = values.get(tensor);
      if (value === undefined) throw new Error(`${node.kind} reads tensor ${tensor} before it is computed`);
      return value;
    });
    const isSending = node.kind === 'sendQ' || node.kind === 'sendKV';
    if (isSending || node.kind === 'waitPartial') {
      const key = JSON.stringify(node.layer);
      const sent = this.#sent.get(key) ?? {};
      this.#sent.set(key, sent);
      if (node.kind === 'sendQ') sent.q = inputs;
      if (node.kind === 'sendKV') sent.kv = inputs;
      if (isSending) return;
      // Fused projections are sent from the same tensor.
      const all = [...new Set([...(sent.q ?? []), ...(sent.kv ?? [])])];
      values.set(node.out, this.#number('attention', key, all));
      return;
    }
    const what =
      node.kind === 'attention'
        ? JSON.stringify(node.layer)
        : JSON.stringify({ ...node, x: 0, out: 0, left: 0, right: 0 });
    for (const [place, out] of nodeOutputs(node).entries())
      values.set(out, this.#number(`${node.kind} ${place}`.replace('attention 0', 'attention'), what, inputs));
  }

  #number(kind: string, what: string, inputs: readonly number[]): number {
    const key = `${kind} ${what} ${inputs.join()}`;
    const known = this.#numbers.get(key) ?? this.#numbers.size;
    this.#numbers.set(key, known);
    return known;
  }
}

/** Every property that slices of any graph have. */
function checkSlices(graph: Graph, slices: readonly ModelSlice[]): void {
  const attentions = graph.nodes.filter((node) => node.kind === 'attention');
  expect(slices.map(({ attention }) => attention)).toEqual([...attentions, undefined]);

  const symbols = new Symbols();
  const whole: Values = new Map();
  symbols.run(graph, whole);
  let carried: Values = new Map();
  for (const each of slices) {
    expect(each.graph.inputs).toEqual([...carried.keys()]);
    const values = new Map(carried);
    symbols.run(each.graph, values);
    for (const [tensor, value] of values) expect(value).toBe(whole.get(tensor));
    carried = new Map(each.graph.outputs.map((tensor) => [tensor, values.get(tensor) ?? -1]));
    expect(each.carriedBytesPerToken).toBe(each.graph.outputs.reduce((sum, id) => sum + bytesPerToken(graph, id), 0));
    if (each.attention !== undefined) checkOrder(each.graph, each.attention);
  }
  const computed = slices.flatMap((each) => each.graph.nodes.flatMap(nodeOutputs));
  expect(computed.toSorted((a, b) => a - b)).toEqual(graph.nodes.flatMap(nodeOutputs).toSorted((a, b) => a - b));
  expect(slices.at(-1)?.graph.logits).toBe(graph.logits);
}

/** sendQ follows the Q projection and its inputs and nothing else; sendKV ends the slice. */
function checkOrder(graph: Graph, { layer }: AttentionNode): void {
  const { nodes } = graph;
  expect(nodes.at(-1)).toMatchObject({ kind: 'sendKV', layer });
  const send = nodes.findIndex(({ kind }) => kind === 'sendQ');
  const needed = new Set(nodeInputs(nodes[send]));
  for (const node of nodes.slice(0, send).reverse()) {
    expect(nodeOutputs(node).some((out) => needed.has(out))).toBe(true);
    for (const tensor of nodeInputs(node)) needed.add(tensor);
  }
  expect(kinds(graph).filter((kind) => kind.startsWith('send'))).toEqual(['sendQ', 'sendKV']);
}

/** The fewest bytes of all valid cuts at this attention, among the nodes that earlier slices left. */
function fewestBytes(graph: Graph, slices: readonly ModelSlice[], index: number): number {
  const { attention, graph: sliced } = slices[index];
  if (attention === undefined) throw new Error('no attention follows the last slice');
  const earlier = new Set(slices.slice(0, index).flatMap((each) => each.graph.nodes.flatMap(nodeOutputs)));
  const nodes = graph.nodes.filter(
    (node: Node) => node !== attention && !nodeOutputs(node).some((out) => earlier.has(out)),
  );
  const waited = slices[index - 1]?.attention?.out;
  const given = waited === undefined ? sliced.inputs : [...sliced.inputs, waited];
  let fewest = Number.POSITIVE_INFINITY;
  const free: readonly Node[] = nodes.filter((node) => node.kind !== 'attention');
  for (let subset = 0; subset < 2 ** free.length; subset++) {
    const before = free.filter((_, place) => (subset & (1 << place)) !== 0);
    const computed = new Set([...given, ...before.flatMap(nodeOutputs)]);
    const isValid =
      attention.x.every((tensor) => computed.has(tensor)) &&
      before.every((node) => nodeInputs(node).every((tensor) => computed.has(tensor)));
    if (!isValid) continue;
    const readLater = new Set(nodes.filter((node) => !before.includes(node)).flatMap(nodeInputs));
    if (graph.logits !== undefined) readLater.add(graph.logits);
    const bytes = [...computed].reduce((sum, id) => sum + (readLater.has(id) ? bytesPerToken(graph, id) : 0), 0);
    fewest = Math.min(fewest, bytes);
  }
  return fewest;
}

/** A random graph with 1 to 3 attention ops, skip connections over them, and tensors of several widths. */
function randomGraph(prng: Prng): Graph {
  const b = new GraphBuilder();
  const widths = [4, 8, 16, 24];
  const tensors = [b.embed('embed', 10, 16)];
  const pick = (): TensorId => tensors[prng.integer(Math.max(0, tensors.length - 6), tensors.length - 1)];
  const grow = (steps: number): void => {
    for (let step = 0; step < steps; step++) {
      const x = pick();
      const same = tensors.filter((tensor) => b.columns(tensor) === b.columns(x));
      if (prng.chance(0.4)) tensors.push(b.add(x, same[prng.integer(0, same.length - 1)]));
      else if (prng.chance(0.3)) tensors.push(b.activate(x, 'silu'));
      else tensors.push(b.linear(x, `w${tensors.length}`, widths[prng.integer(0, widths.length - 1)]));
    }
  };
  const attentions = prng.integer(1, 3);
  for (let index = 0; index < attentions; index++) {
    grow(prng.integer(0, 2));
    const x = prng.chance(0.3)
      ? [b.linear(pick(), `qkv${index}`, 32)]
      : [b.linear(pick(), `q${index}`, 16), b.linear(pick(), `kv${index}`, 16)];
    tensors.push(b.attention(x, shape));
  }
  grow(prng.integer(0, 3));
  return b.head(pick(), 'head', 10);
}

test('cuts of random graphs carry the fewest bytes, and their slices compute the same', () => {
  const prng = new Prng(16, 2);
  let carriedMax = 0;
  for (let round = 0; round < 60; round++) {
    const graph = randomGraph(prng);
    const slices = slice(graph);
    checkSlices(graph, slices);
    for (const [index, { attention, carriedBytesPerToken, graph: sliced }] of slices.entries()) {
      if (attention === undefined) continue;
      carriedMax = Math.max(carriedMax, sliced.outputs.length);
      expect(carriedBytesPerToken, `round ${round}, cut ${index}`).toBe(fewestBytes(graph, slices, index));
    }
  }
  expect(carriedMax).toBeGreaterThan(1);
});

/** A small configuration of an architecture. */
function configOf(architecture: string): ModelConfig {
  const config = { ...smallConfig, architecture };
  const biases = { qkv: true, attentionOutput: true, mlp: true };
  const older = { ...config, kvHeads: config.heads, biases };
  switch (architecture) {
    case 'gemma2':
    case 'gemma3':
    case 'mistral': {
      const layers = architecture === 'mistral' ? undefined : (['sliding', 'full', 'sliding'] as const);
      return { ...config, attention: { scale: 0.25, softcap: 20, window: 32, layers } };
    }
    case 'gpt_neox':
      return { ...older, parallelResidual: true };
    case 'bloom':
      return { ...older, positions: { kind: 'alibi' } };
    case 'gpt2':
    case 'opt':
      return { ...older, positions: { kind: 'learned', offset: architecture === 'opt' ? 2 : 0 } };
    default:
      return config;
  }
}

/** Attention workers serve no encoder. */
const decoders = knownArchitectures.filter((name) => !['bert', 'nomic_bert'].includes(name));

describe.each(decoders)('%s', (architecture) => {
  const config = configOf(architecture);
  const graph = buildGraph(config);
  const slices = slice(graph);

  test('converts; every cut carries the residual stream alone', () => {
    checkSlices(graph, slices);
    expect(slices.map(({ carriedBytesPerToken }) => carriedBytesPerToken)).toEqual([
      hiddenBytes,
      hiddenBytes,
      hiddenBytes,
      0,
    ]);
    for (const { graph: sliced } of slices.slice(0, -1)) expect(sliced.outputs).toHaveLength(1);
  });

  test('compiles to one program in one linear order, over pages of attention workers alone', () => {
    const { program } = compile(fuse(modelWorkerGraph(graph)), { inputForm: () => 'bf16', kvType: 'bf16' });
    const remote = program.ops.flatMap(({ kind }) => (/^(send|waitPartial)/.test(kind) ? [kind] : []));
    expect(remote).toEqual(Array.from({ length: config.layers }, () => ['sendQ', 'sendKV', 'waitPartial']).flat());
    expect(program.groups).toEqual(graph.groups);
    const paged = ['qkv', 'attention', 'layerReady', 'waitLayer', 'waitRows', 'rowsReady'];
    expect(program.ops.filter(({ kind }) => paged.includes(kind))).toEqual([]);
  });

  test('the program of a slice waits for its carried context, and hands on the next', () => {
    for (const { graph: sliced } of slices) {
      const { program, inputs, outputs } = compile(fuse(sliced), { inputForm: () => 'bf16', kvType: 'bf16' });
      expect(inputs).toHaveLength(sliced.inputs.length);
      expect(program.ops.slice(0, inputs.length).map(({ kind }) => kind)).toEqual(inputs.map(() => 'waitRows'));
      expect(program.ops.slice(program.ops.length - outputs.length).map(({ kind }) => kind)).toEqual(
        outputs.map(() => 'rowsReady'),
      );
      for (const id of [...inputs, ...outputs]) expect(program.buffers[id].kind).toBe('f32');
    }
  });
});

test('a slice of Llama ends with sendQ, the other projections and sendKV', () => {
  const slices = slice(buildGraph(smallConfig));
  const send = ['q_proj', 'sendQ', 'k_proj', 'v_proj', 'sendKV'];
  expect(named(slices[0].graph)).toEqual(['embed', 'input_layernorm', ...send]);
  const mlp = ['post_attention_layernorm', 'gate_proj', 'up_proj', 'glu', 'down_proj', 'add'];
  expect(named(slices[1].graph)).toEqual(['waitPartial', 'o_proj', 'add', ...mlp, 'input_layernorm', ...send]);
  expect(named(slices[3].graph)).toEqual(['waitPartial', 'o_proj', 'add', ...mlp, 'norm', 'embed_tokens']);
});

test('k and v, but not q, become one linear', () => {
  const { linears } = compile(fuse(modelWorkerGraph(buildGraph(smallConfig))), {
    inputForm: () => 'bf16',
    kvType: 'bf16',
  });
  expect(linears.slice(1, 3).map(({ segments }) => segments.map(({ rows }) => rows))).toEqual([[64], [32, 32]]);
});

test('a fused projection (Phi-3) sends Q and then K and V from the same rows', () => {
  const { nodes } = slice(buildGraph(configOf('phi3')))[0].graph;
  expect(nodes.map(({ kind }) => kind)).toEqual(['embed', 'norm', 'linear', 'sendQ', 'sendKV']);
  expect(nodeInputs(nodes[3])).toEqual(nodeInputs(nodes[4]));
});

test('a parallel MLP (GPT-NeoX) runs after the attention: before it, its output would be carried, too', () => {
  const slices = slice(buildGraph(configOf('gpt_neox')));
  expect(named(slices[0].graph)).toEqual(['embed', 'input_layernorm', 'query_key_value', 'sendQ', 'sendKV']);
  expect(named(slices[3].graph)).toContain('dense_h_to_4h');
});

test('gains and RoPE of q and k stay with the model workers; windows and slopes go with the attention', () => {
  const { graph, attention } = slice(buildGraph({ ...configOf('gemma3'), headDim: 16 }))[0];
  const gain = (which: string) => ({ name: `model.layers.0.self_attn.${which}_norm.weight`, offset: 0 });
  expect(graph.nodes.find(({ kind }) => kind === 'sendQ')).toMatchObject({ qNorm: gain('q'), rope: { theta: 10_000 } });
  expect(graph.nodes.at(-1)).toMatchObject({ kNorm: gain('k'), rope: { theta: 10_000 } });
  expect(attention).toMatchObject({ window: 32, softcap: 20, scale: 0.25 });
  expect(slice(buildGraph(configOf('bloom')))[0].attention).toMatchObject({ alibi: true, rope: undefined });
});

test('a norm that attention and MLP share is carried instead of the residual stream if nothing else reads that', () => {
  const b = new GraphBuilder();
  const shared = b.rmsNorm(b.embed('embed', 10, 64), 'norm', { eps: 1e-5 });
  const attended = b.attention([b.linear(shared, 'qkv', 32)], shape);
  const graph = b.head(b.add(b.linear(attended, 'o', 64), b.linear(shared, 'mlp', 64)), 'head', 10);
  const slices = slice(graph);
  checkSlices(graph, slices);
  expect(slices[0].graph.outputs).toEqual([shared]);
});

test('a narrow projection before the cut replaces its wide input', () => {
  const b = new GraphBuilder();
  const x = b.embed('embed', 10, 64);
  const attended = b.attention([b.linear(x, 'qkv', 32)], shape);
  const narrow = b.linear(x, 'narrow', 16);
  const graph = b.head(b.add(attended, narrow), 'head', 10);
  const slices = slice(graph);
  checkSlices(graph, slices);
  expect(slices[0].graph.outputs).toEqual([narrow]);
  expect(kinds(slices[0].graph)).toEqual(['embed', 'linear', 'sendQ', 'linear', 'sendKV']);
});

test('two residual streams are both carried, one of them past a cut that does not read it', () => {
  const b = new GraphBuilder();
  const first = b.embed('first', 10, 16);
  const second = b.linear(first, 'second', 24);
  const x = b.attention([b.linear(first, 'qkv.0', 32)], shape);
  const afterFirst = b.add(first, x);
  const y = b.attention([b.linear(afterFirst, 'qkv.1', 32)], shape);
  const both = b.add(b.linear(b.add(afterFirst, y), 'up', 24), second);
  const graph = b.head(b.add(both, b.linear(first, 'skip', 24)), 'head', 10);
  const slices = slice(graph);
  checkSlices(graph, slices);
  // `second` and the skip need only `first`, until they are computed from it.
  expect(slices[0].graph.outputs).toEqual([first]);
  expect(slices[1].graph.outputs).toEqual([first, afterFirst]);
  expect(slices.map(({ carriedBytesPerToken }) => carriedBytesPerToken)).toEqual([64, 128, 0]);
  compile(fuse(modelWorkerGraph(graph)), { inputForm: () => 'f32', kvType: 'f32' });
});

test('a model without attention is one slice', () => {
  const b = new GraphBuilder();
  const graph = b.head(b.embed('embed', 10, 16), 'head', 10);
  expect(slice(graph)).toEqual([{ graph, attention: undefined, carriedBytesPerToken: 0 }]);
});
