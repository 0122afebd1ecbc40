// Writes a Hugging Face checkpoint as a GGUF file in float32 without a vocabulary, with llama.cpp's names and row orders: for tests and comparisons.
// node tools/write-gguf/convert.mjs FOLDER OUT.gguf
import { realpathSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { readCheckpoint } from './checkpoint.mjs';
import { f32, string, u32, writeGgufFile } from './gguf-file.mjs';
import { tensorName } from './names.mjs';

const f32TypeId = 0;

/**
 * @param {string} folder with config.json and model.safetensors, of an architecture that GGUF has a name for
 * @param {string} path of the file to write
 */
export function convert(folder, path) {
  const { config, tensors } = readCheckpoint(folder);
  const architecture = architectureOf(config);
  const out = [...tensors].flatMap(([name, tensor]) => stored(architecture, config, name, tensor));
  const frequencies = ropeDivisors(config);
  if (frequencies !== undefined) out.push({ name: 'rope_freqs.weight', shape: [frequencies.length], values: frequencies });
  const written = out.map(({ name, shape, values }) => {
    return { name, shape, typeId: f32TypeId, bytes: new Uint8Array(values.buffer, values.byteOffset, values.byteLength) };
  });
  writeGgufFile(path, metadataOf(architecture, config), written);
}

function architectureOf({ model_type: type }) {
  const known = { llama: 'llama', mistral: 'llama', qwen2: 'qwen2', qwen3: 'qwen3', gemma2: 'gemma2', gemma3_text: 'gemma3', phi3: 'phi3', gpt2: 'gpt2' };
  if (known[type] === undefined) throw new Error(`Cannot write GGUF: no architecture for ${type}: known are ${Object.keys(known).join(', ')}`);
  return known[type];
}

const headsOf = (config) => config.num_attention_heads ?? config.n_head;
const hiddenOf = (config) => config.hidden_size ?? config.n_embd;
const headDimOf = (config) => config.head_dim ?? hiddenOf(config) / headsOf(config);
/** Rope settings of all layers, or of those without a window. */
const ropeOf = (config) => {
  const settings = config.rope_parameters ?? { rope_theta: config.rope_theta, ...config.rope_scaling };
  return settings.full_attention ?? settings;
};

function metadataOf(architecture, config) {
  const entries = [
    ['context_length', u32(config.max_position_embeddings ?? config.n_positions)],
    ['embedding_length', u32(hiddenOf(config))],
    ['block_count', u32(config.num_hidden_layers ?? config.n_layer)],
    ['feed_forward_length', u32(config.intermediate_size ?? config.n_inner)],
    ['attention.head_count', u32(headsOf(config))],
    ['vocab_size', u32(config.vocab_size)],
    ...(architecture === 'gpt2' ? [['attention.layer_norm_epsilon', f32(config.layer_norm_epsilon)]] : rotaryMetadata(config)),
  ];
  if (config.sliding_window) entries.push(['attention.sliding_window', u32(config.sliding_window)]);
  if (config.attn_logit_softcapping) entries.push(['attn_logit_softcapping', f32(config.attn_logit_softcapping)]);
  if (config.final_logit_softcapping) entries.push(['final_logit_softcapping', f32(config.final_logit_softcapping)]);
  return [
    ['general.architecture', string(architecture)],
    ['tokenizer.ggml.model', string('no_vocab')],
    ['tokenizer.ggml.bos_token_id', u32(config.bos_token_id)],
    ['tokenizer.ggml.eos_token_id', u32(config.eos_token_id)],
    ...entries.map(([key, value]) => [`${architecture}.${key}`, value]),
  ];
}

function rotaryMetadata(config) {
  const rope = ropeOf(config);
  const kind = rope.rope_type ?? 'default';
  const headDim = headDimOf(config);
  return [
    ['attention.head_count_kv', u32(config.num_key_value_heads)],
    ['attention.key_length', u32(headDim)],
    ['attention.value_length', u32(headDim)],
    ['attention.layer_norm_rms_epsilon', f32(config.rms_norm_eps)],
    ['rope.dimension_count', u32(headDim)],
    ['rope.freq_base', f32(rope.rope_theta)],
    ...(kind === 'linear' ? [['rope.scaling.type', string('linear')], ['rope.scaling.factor', f32(rope.factor)]] : []),
    // llama.cpp requires this key in every phi3 file.
    ...(config.model_type === 'phi3' ? [['rope.scaling.original_context_length', u32(config.original_max_position_embeddings)]] : []),
  ];
}

/** The divisor of each frequency in Llama 3's scaling. */
function ropeDivisors(config) {
  const rope = ropeOf(config);
  if (rope.rope_type !== 'llama3') return undefined;
  const half = headDimOf(config) / 2;
  return Float32Array.from({ length: half }, (_, i) => {
    const turns = (rope.original_max_position_embeddings * rope.rope_theta ** (-i / half)) / (2 * Math.PI);
    const kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    const smooth = Math.min(1, Math.max(0, kept));
    return 1 / ((1 - smooth) / rope.factor + smooth);
  });
}

/** The tensor as GGUF stores it; none for a tensor that GGUF files omit. */
function stored(architecture, config, name, { shape, values }) {
  const to = tensorName(architecture, name);
  if (to === undefined || (to === 'output.weight' && config.tie_word_embeddings)) return [];
  if (architecture === 'gpt2' && /\.(c_attn|c_proj|c_fc)\.weight$/.test(name)) return [{ name: to, shape: [...shape].reverse(), values: transposed(values, shape) }];
  if (architecture === 'llama' && name.includes('.q_proj.')) return [{ name: to, shape, values: pairedRows(values, shape[0], headsOf(config)) }];
  if (architecture === 'llama' && name.includes('.k_proj.')) return [{ name: to, shape, values: pairedRows(values, shape[0], config.num_key_value_heads) }];
  if (architecture.startsWith('gemma')) return [{ name: to, shape, values: gemmaValues(architecture, config, name, values) }];
  return [{ name: to, shape, values }];
}

function gemmaValues(architecture, config, name, values) {
  if (name.endsWith('norm.weight')) return values.map((value) => value + 1);
  // GGUF has no key for the scale of queries: the queries are multiplied by it, relative to llama.cpp's own scale.
  const scale = Math.sqrt(headDimOf(config) / config.query_pre_attn_scalar);
  if (scale !== 1 && architecture !== 'gemma2') throw new Error(`Cannot write GGUF: ${architecture} cannot store a query scale`);
  return name.includes('.q_proj.') ? values.map((value) => value * scale) : values;
}

function transposed(values, [rows, columns]) {
  const out = new Float32Array(values.length);
  for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) out[column * rows + row] = values[row * columns + column];
  return out;
}

/** (heads, 2, half, columns) to (heads, half, 2, columns): llama.cpp rotates neighbouring pairs. */
function pairedRows(values, rows, heads) {
  const columns = values.length / rows;
  const headRows = rows / heads;
  const half = headRows / 2;
  const out = new Float32Array(values.length);
  for (let row = 0; row < rows; row++) {
    const inHead = row % headRows;
    const to = row - inHead + (inHead % half) * 2 + Math.floor(inHead / half);
    out.set(values.subarray(row * columns, (row + 1) * columns), to * columns);
  }
  return out;
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const [folder, path] = process.argv.slice(2);
  if (folder === undefined || path === undefined) {
    console.error('usage: convert.mjs FOLDER OUT.gguf');
    process.exitCode = 2;
  } else {
    convert(folder, path);
  }
}
