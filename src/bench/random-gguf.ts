// Writes a Llama of any shape with random Q4_0 weights and no vocabulary, for benches of speed and bytes.
import { closeSync, openSync, writeSync } from 'node:fs';

export interface LlamaShape {
  readonly layers: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly vocabulary: number;
  readonly positions: number;
}

/** A billion parameters in the shape of Llama 3.2, with a small vocabulary. */
export const oneBillion: LlamaShape = {
  ...{ layers: 16, hidden: 2048, intermediate: 8192, heads: 32, kvHeads: 8, headDim: 64 },
  ...{ vocabulary: 32_768, positions: 16_384 },
};

/** A hundred million. */
export const hundredMillion: LlamaShape = {
  ...{ layers: 12, hidden: 768, intermediate: 3072, heads: 12, kvHeads: 4, headDim: 64 },
  ...{ vocabulary: 8192, positions: 8192 },
};

interface Tensor {
  readonly name: string;
  /** Fastest first, as in the file. */
  readonly dims: readonly number[];
  readonly q4: boolean;
}

const alignment = 32;
const ids = { u32: 4, f32: 6, text: 8 } as const;
const types = { f32: 0, q4: 2 } as const;
/** A Q4_0 block: 32 weights under one f16 scale. */
const blockWeights = 32;
const blockBytes = 18;
/** 0.004 in f16: weights deviate by about 0.02. */
const scale = 0x1c19;

export function writeRandomLlama(path: string, shape: LlamaShape): void {
  const tensors = tensorsOf(shape);
  const file = openSync(path, 'w');
  try {
    const head = header(shape, tensors);
    writeSync(file, head);
    writeSync(file, new Uint8Array(padding(head.byteLength)));
    for (const tensor of tensors) {
      writeData(file, tensor);
      writeSync(file, new Uint8Array(padding(bytesOf(tensor))));
    }
  } finally {
    closeSync(file);
  }
}

function tensorsOf({ layers, hidden, intermediate, heads, kvHeads, headDim, vocabulary }: LlamaShape): Tensor[] {
  const matrix = (name: string, columns: number, rows: number): Tensor => ({ name, dims: [columns, rows], q4: true });
  const gain = (name: string): Tensor => ({ name, dims: [hidden], q4: false });
  const all = [matrix('token_embd.weight', hidden, vocabulary), gain('output_norm.weight')];
  for (let layer = 0; layer < layers; layer++) {
    const at = `blk.${layer}`;
    all.push(
      gain(`${at}.attn_norm.weight`),
      matrix(`${at}.attn_q.weight`, hidden, heads * headDim),
      matrix(`${at}.attn_k.weight`, hidden, kvHeads * headDim),
      matrix(`${at}.attn_v.weight`, hidden, kvHeads * headDim),
      matrix(`${at}.attn_output.weight`, heads * headDim, hidden),
      gain(`${at}.ffn_norm.weight`),
      matrix(`${at}.ffn_gate.weight`, hidden, intermediate),
      matrix(`${at}.ffn_up.weight`, hidden, intermediate),
      matrix(`${at}.ffn_down.weight`, intermediate, hidden),
    );
  }
  return all;
}

function header(shape: LlamaShape, tensors: readonly Tensor[]): Uint8Array {
  const parts: Buffer[] = [];
  const u32 = (value: number): void => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value);
    parts.push(bytes);
  };
  const u64 = (value: number): void => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64LE(BigInt(value));
    parts.push(bytes);
  };
  const text = (value: string): void => {
    u64(value.length);
    parts.push(Buffer.from(value));
  };
  const facts = factsOf(shape);
  parts.push(Buffer.from('GGUF'));
  u32(3);
  u64(tensors.length);
  u64(facts.length);
  for (const [key, type, value] of facts) {
    text(key);
    u32(ids[type]);
    if (type === 'text') text(String(value));
    else if (type === 'u32') u32(Number(value));
    else parts.push(Buffer.from(Float32Array.of(Number(value)).buffer));
  }
  let offset = 0;
  for (const tensor of tensors) {
    text(tensor.name);
    u32(tensor.dims.length);
    for (const size of tensor.dims) u64(size);
    u32(types[tensor.q4 ? 'q4' : 'f32']);
    u64(offset);
    offset += bytesOf(tensor) + padding(bytesOf(tensor));
  }
  return Buffer.concat(parts);
}

function factsOf(shape: LlamaShape): readonly (readonly [string, keyof typeof ids, string | number])[] {
  return [
    ['general.architecture', 'text', 'llama'],
    ['llama.vocab_size', 'u32', shape.vocabulary],
    ['llama.embedding_length', 'u32', shape.hidden],
    ['llama.feed_forward_length', 'u32', shape.intermediate],
    ['llama.block_count', 'u32', shape.layers],
    ['llama.attention.head_count', 'u32', shape.heads],
    ['llama.attention.head_count_kv', 'u32', shape.kvHeads],
    ['llama.attention.key_length', 'u32', shape.headDim],
    ['llama.attention.value_length', 'u32', shape.headDim],
    ['llama.context_length', 'u32', shape.positions],
    ['llama.attention.layer_norm_rms_epsilon', 'f32', 1e-5],
    ['llama.rope.freq_base', 'f32', 10_000],
    ['tokenizer.ggml.model', 'text', 'no_vocab'],
  ];
}

function weightsOf({ dims }: Tensor): number {
  return dims.reduce((product, size) => product * size, 1);
}

function bytesOf(tensor: Tensor): number {
  return tensor.q4 ? (weightsOf(tensor) / blockWeights) * blockBytes : weightsOf(tensor) * 4;
}

function padding(bytes: number): number {
  return (alignment - (bytes % alignment)) % alignment;
}

/** Random blocks of a tensor, repeated to its end. The number is prime, so that rows differ. */
const distinctBlocks = 32_749;

function writeData(file: number, tensor: Tensor): void {
  let left = bytesOf(tensor);
  const chunk = tensor.q4
    ? randomBlocks(tensor.name.length)
    : new Uint8Array(new Float32Array(weightsOf(tensor)).fill(1).buffer);
  while (left > 0) left -= writeSync(file, chunk, 0, Math.min(left, chunk.byteLength));
}

function randomBlocks(seed: number): Uint8Array {
  const halves = new Uint16Array((distinctBlocks * blockBytes) / 2);
  let state = seed + 1;
  for (let i = 0; i < halves.length; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    halves[i] = i % (blockBytes / 2) === 0 ? scale : state >>> 16;
  }
  return new Uint8Array(halves.buffer);
}
