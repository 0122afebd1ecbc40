// Writes a GGUF file of random weights in the shape of a real model: speed does not depend on the values.
// node tools/peer-llama/random-gguf.mjs OUT 135m|1b [q4_0|q8_0|q4_k]
import { closeSync, openSync, realpathSync, writeSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const shapes = {
  '135m': { hidden: 576, heads: 9, kvHeads: 3, headDim: 64, ffn: 1536, layers: 30, vocabulary: 49_152 },
  '1b': { hidden: 2048, heads: 32, kvHeads: 8, headDim: 64, ffn: 8192, layers: 16, vocabulary: 32_000 },
};
/** Of each type: ggml's number, elements and bytes of a block, the divisor of scales, and minima in units of the scale. */
const types = {
  f32: { id: 0, block: 32, blockBytes: 128 },
  q4_0: { id: 2, block: 32, blockBytes: 18, largest: 4.6 },
  q8_0: { id: 8, block: 32, blockBytes: 34, largest: 74 },
  // Scales and minima of 6 bits: a value is d scale level - dmin minimum.
  q4_k: { id: 12, block: 256, blockBytes: 144, largest: 170, minimum: 7.5 },
};
const alignment = 32;
const context = 16_384;

export function writeRandomGguf(path, shapeName, typeName) {
  const shape = shapes[shapeName];
  const whole = shape !== undefined && shape.hidden % (types[typeName]?.block ?? 1) === 0;
  if (!whole || types[typeName]?.largest === undefined) {
    throw new Error(`Cannot write ${path}: no shape ${shapeName} of ${typeName}: 135m or 1b, q4_0 or q8_0; 1b also q4_k`);
  }
  const tensors = tensorsOf(shape, typeName);
  const file = openSync(path, 'w');
  const header = headerOf(shape, tensors);
  writeSync(file, padded(header));
  const noise = randomBytes(1 << 22);
  for (const tensor of tensors) writeTensor(file, tensor, noise);
  closeSync(file);
}

function tensorsOf({ hidden, heads, kvHeads, headDim, ffn, layers, vocabulary }, type) {
  const matrix = (name, rows, columns) => ({ name, type, dims: [columns, rows] });
  const ones = (name) => ({ name, type: 'f32', dims: [hidden] });
  const tensors = [
    matrix('token_embd.weight', vocabulary, hidden),
    ones('output_norm.weight'),
    matrix('output.weight', vocabulary, hidden),
  ];
  for (let layer = 0; layer < layers; layer++) {
    const name = (part) => `blk.${layer}.${part}.weight`;
    tensors.push(
      ...[ones(name('attn_norm')), ones(name('ffn_norm'))],
      matrix(name('attn_q'), heads * headDim, hidden),
      matrix(name('attn_k'), kvHeads * headDim, hidden),
      matrix(name('attn_v'), kvHeads * headDim, hidden),
      matrix(name('attn_output'), hidden, heads * headDim),
      matrix(name('ffn_gate'), ffn, hidden),
      matrix(name('ffn_up'), ffn, hidden),
      matrix(name('ffn_down'), hidden, ffn),
    );
  }
  return tensors;
}

function headerOf({ hidden, heads, kvHeads, headDim, ffn, layers, vocabulary }, tensors) {
  const metadata = [
    ...[text('general.architecture', 'llama'), text('tokenizer.ggml.model', 'no_vocab')],
    ...[count('llama.context_length', context), count('llama.embedding_length', hidden)],
    ...[count('llama.block_count', layers), count('llama.feed_forward_length', ffn)],
    ...[count('llama.attention.head_count', heads), count('llama.attention.head_count_kv', kvHeads)],
    ...[count('llama.rope.dimension_count', headDim), count('llama.vocab_size', vocabulary)],
    ...[real('llama.attention.layer_norm_rms_epsilon', 1e-5), real('llama.rope.freq_base', 10_000)],
  ];
  let offset = 0;
  const infos = tensors.map((tensor) => {
    const info = Buffer.concat([
      string(tensor.name),
      u32(tensor.dims.length),
      ...tensor.dims.map(u64),
      u32(types[tensor.type].id),
      u64(offset),
    ]);
    offset += Math.ceil(bytesOf(tensor) / alignment) * alignment;
    return info;
  });
  return Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(metadata.length), ...metadata, ...infos]);
}

function bytesOf({ type, dims }) {
  return (dims.reduce((product, size) => product * size, 1) / types[type].block) * types[type].blockBytes;
}

function writeTensor(file, tensor, noise) {
  const bytes = bytesOf(tensor);
  const { type, dims } = tensor;
  if (type === 'f32') {
    writeSync(file, padded(Buffer.from(new Float32Array(dims[0]).fill(1).buffer)));
    return;
  }
  const { blockBytes, largest, minimum } = types[type];
  const scale = 1 / Math.sqrt(dims[0]) / largest;
  const chunk = Buffer.from(noise.subarray(0, Math.floor(noise.length / blockBytes) * blockBytes));
  for (let at = 0; at < chunk.length; at += blockBytes) {
    chunk.writeUInt16LE(halfBits(scale), at);
    if (minimum !== undefined) chunk.writeUInt16LE(halfBits(scale * minimum), at + 2);
  }
  for (let at = 0; at < bytes; at += chunk.length) writeSync(file, chunk.subarray(0, Math.min(chunk.length, bytes - at)));
  writeSync(file, Buffer.alloc((alignment - (bytes % alignment)) % alignment));
}

/** The same bytes at every run (xorshift32). */
function randomBytes(count) {
  const words = new Uint32Array(count / 4);
  let state = 2_463_534_242;
  for (let i = 0; i < words.length; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    words[i] = state;
  }
  return Buffer.from(words.buffer);
}

/** Bits of a small positive normal float16, its mantissa cut. */
function halfBits(value) {
  const exponent = Math.floor(Math.log2(value));
  return ((exponent + 15) << 10) | Math.floor((value / 2 ** exponent - 1) * 1024);
}

function padded(buffer) {
  return Buffer.concat([buffer, Buffer.alloc((alignment - (buffer.length % alignment)) % alignment)]);
}

function u32(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function u64(value) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}

function string(value) {
  return Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
}

const text = (key, value) => Buffer.concat([string(key), u32(8), string(value)]);
const count = (key, value) => Buffer.concat([string(key), u32(4), u32(value)]);
const real = (key, value) => {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(value);
  return Buffer.concat([string(key), u32(6), bytes]);
};

if (realpathSync(process.argv[1] ?? '') === fileURLToPath(import.meta.url)) {
  const [out, shape, type = 'q4_0'] = process.argv.slice(2);
  if (out === undefined || shape === undefined) {
    console.error('usage: random-gguf.mjs OUT 135m|1b [q4_0|q8_0|q4_k]');
    process.exitCode = 2;
  } else {
    writeRandomGguf(out, shape, type);
  }
}
