// Random models of any size in both file formats with the same values, for tests that need no trained model.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type GainRef, type Graph, nodeOutputs, type WeightRef } from '../../src/graph/graph.ts';
import { buildGraph } from '../../src/models/registry.ts';
import { huggingFaceConfig } from '../../src/weights/hugging-face/hf-config.ts';
import { quantise } from '../../src/weights/quants/quantise.ts';
import type { TensorType } from '../../src/weights/types.ts';
import { asStored, configJson, type FamilyName } from './random-families.ts';
import { f32, type GgufTensorSpec, type GgufValue, text, u32, writeGguf, writeSafetensors } from './writers.ts';

export interface RandomModelSpec {
  readonly architecture: FamilyName;
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly maxPositions: number;
  readonly tieEmbeddings: boolean;
  /** Window of the sliding layers, in architectures that have them. */
  readonly window?: number;
  readonly seed: number;
}

export const tinySpec: RandomModelSpec = {
  architecture: 'llama',
  vocabSize: 96,
  hiddenSize: 64,
  intermediateSize: 96,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 16,
  maxPositions: 256,
  tieEmbeddings: false,
  seed: 1,
};

export interface RandomTensor {
  /** Hugging Face name. */
  readonly name: string;
  /** Shape and values in the order that models use; the file may store them in another order. */
  readonly shape: readonly number[];
  readonly values: Float32Array;
}

/**
 * Every tensor that the model's graph reads: small matrices keep activations near 1; gains are near 1, biases near 0.
 */
export function randomTensors(spec: RandomModelSpec): RandomTensor[] {
  const random = normals(spec.seed);
  const tensors = new Map<string, RandomTensor>();
  for (const { name, shape, mean, deviation } of modelTensors(buildGraph(huggingFaceConfig('', configJson(spec))))) {
    if (tensors.has(name)) continue;
    const values = new Float32Array(shape.reduce((product, size) => product * size, 1));
    for (let index = 0; index < values.length; index++) values[index] = mean + deviation * random();
    tensors.set(name, { name, shape, values });
  }
  return [...tensors.values()];
}

interface ModelTensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly mean: number;
  readonly deviation: number;
}

function modelTensors(graph: Graph): ModelTensor[] {
  const matrix = ({ name, rows, columns, bias }: WeightRef): ModelTensor[] => [
    { name, shape: [rows, columns], mean: 0, deviation: 1 / Math.sqrt(columns) },
    ...vector(bias, rows, 0),
  ];
  const vector = (name: string | undefined, size: number, mean: number): ModelTensor[] =>
    name === undefined ? [] : [{ name, shape: [size], mean, deviation: 0.1 }];
  const gain = (ref: GainRef | undefined, size: number) => vector(ref?.name, size, 1 - (ref?.offset ?? 0));
  return graph.nodes.flatMap((node): ModelTensor[] => {
    const columns = graph.tensors[nodeOutputs(node)[0]].columns;
    switch (node.kind) {
      case 'embed': {
        const { weight, positions } = node;
        const tables = [positions, positions?.types].flatMap((table) =>
          table?.name === undefined ? [] : matrix({ name: table.name, rows: table.rows, columns, bias: undefined }),
        );
        return [...matrix(weight), ...tables];
      }
      case 'norm':
        return [...gain(node.gain, columns), ...vector(node.bias, columns, 0)];
      case 'linear':
        return node.segments.flatMap(matrix);
      case 'attention':
        return [...gain(node.qNorm, node.headDim), ...gain(node.kNorm, node.headDim)];
      default:
        return [];
    }
  });
}

/** Writes a Hugging Face directory without a tokenizer. */
export function writeHuggingFaceModel(folder: string, spec: RandomModelSpec, type: 'f32' | 'f16' | 'bf16'): void {
  mkdirSync(folder, { recursive: true });
  const tensors = randomTensors(spec).map((tensor) => {
    const { name, shape, values } = asStored(spec, tensor);
    return { name, shape, dtype: type.toUpperCase(), bytes: quantise(type, values) };
  });
  writeFileSync(join(folder, 'config.json'), JSON.stringify(configJson(spec)));
  writeFileSync(join(folder, 'model.safetensors'), writeSafetensors(tensors));
}

const ggufStems: Readonly<Record<string, string>> = {
  input_layernorm: 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  post_attention_layernorm: 'ffn_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
};

/** GGUF metadata of the model, without a vocabulary. */
export function ggufMetadata(spec: RandomModelSpec): (readonly [string, GgufValue])[] {
  const at = spec.architecture;
  return [
    ['general.architecture', text(at)],
    [`${at}.vocab_size`, u32(spec.vocabSize)],
    [`${at}.embedding_length`, u32(spec.hiddenSize)],
    [`${at}.feed_forward_length`, u32(spec.intermediateSize)],
    [`${at}.block_count`, u32(spec.layers)],
    [`${at}.attention.head_count`, u32(spec.heads)],
    [`${at}.attention.head_count_kv`, u32(spec.kvHeads)],
    [`${at}.attention.key_length`, u32(spec.headDim)],
    [`${at}.attention.value_length`, u32(spec.headDim)],
    [`${at}.context_length`, u32(spec.maxPositions)],
    [`${at}.attention.layer_norm_rms_epsilon`, f32(1e-5)],
    [`${at}.rope.freq_base`, f32(10_000)],
    ['tokenizer.ggml.model', text('no_vocab')],
  ];
}

/** The tensors as a converter writes them: GGUF names, q and k of llama reordered, vectors in f32. */
export function ggufTensors(
  spec: RandomModelSpec,
  type: TensorType | ((name: string) => TensorType),
): GgufTensorSpec[] {
  return randomTensors(spec).map(({ name, shape, values }) => {
    const heads = name.includes('q_proj') ? spec.heads : name.includes('k_proj') ? spec.kvHeads : undefined;
    const paired = spec.architecture === 'llama' && heads !== undefined;
    const ordered = paired ? pairRows(values, shape[0] ?? 0, heads) : values;
    const stored = shape.length === 1 ? 'f32' : typeof type === 'string' ? type : type(name);
    return { name: ggufName(name), type: stored, shape, bytes: quantise(stored, ordered) };
  });
}

export function writeGgufModel(path: string, spec: RandomModelSpec, type: TensorType): void {
  writeFileSync(path, writeGguf({ metadata: ggufMetadata(spec), tensors: ggufTensors(spec, type) }));
}

function ggufName(name: string): string {
  const match = /^model\.layers\.(\d+)\.(.+)\.(weight|bias)$/.exec(name);
  if (match !== null) return `blk.${match[1]}.${ggufStems[match[2] ?? '']}.${match[3]}`;
  if (name === 'model.embed_tokens.weight') return 'token_embd.weight';
  return name === 'model.norm.weight' ? 'output_norm.weight' : 'output.weight';
}

/** Reorders (heads, 2, half, columns) to (heads, half, 2, columns), as converters do for llama. */
function pairRows(values: Float32Array, rows: number, heads: number): Float32Array {
  const columns = values.length / rows;
  const headRows = rows / heads;
  const half = headRows / 2;
  const out = new Float32Array(values.length);
  for (let row = 0; row < rows; row++) {
    const inHead = row % headRows;
    const target = row - inHead + (inHead % half) * 2 + Math.floor(inHead / half);
    out.set(values.subarray(row * columns, (row + 1) * columns), target * columns);
  }
  return out;
}

/** Normal deviates from a seed: a mixed Weyl sequence, twelve uniform values each. */
function normals(seed: number): () => number {
  let state = seed >>> 0;
  const uniform = (): number => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    return ((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32;
  };
  return () => {
    let sum = -6;
    for (let index = 0; index < 12; index++) sum += uniform();
    return sum;
  };
}
