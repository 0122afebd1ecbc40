// Families of Hugging Face checkpoints: defaults of published configurations, names, storage orders and refusals.
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { huggingFaceConfig } from '../../src/weights/hugging-face/hf-config.ts';
import { checkpointName } from '../../src/weights/hugging-face/hf-names.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { dequantise } from '../../src/weights/quants/dequantise.ts';
import { expectTensor } from '../../src/weights/types.ts';
import { configJson, type FamilyName } from './random-families.ts';
import { randomTensors, tinySpec, writeHuggingFaceModel } from './random-model.ts';
import { temporaryFolder } from './temporary.ts';

const folder = temporaryFolder();
const ownHeads = { ...tinySpec, kvHeads: 4 };
const config = (settings: Record<string, unknown>) => huggingFaceConfig('config.json', settings);

describe('published configurations with omitted keys', () => {
  test('gemma-3-4b: the text model of a multimodal model', () => {
    const found = config({
      model_type: 'gemma3_text',
      hidden_size: 2560,
      intermediate_size: 10_240,
      num_hidden_layers: 34,
      rope_scaling: { factor: 8, rope_type: 'linear' },
      attn_logit_softcapping: 50,
      sliding_window: 1024,
      eos_token_id: [1, 106],
    });
    expect(found).toMatchObject({
      architecture: 'gemma3',
      vocabSize: 262_208,
      heads: 8,
      kvHeads: 4,
      headDim: 256,
      tieEmbeddings: true,
      activation: 'gelu_tanh',
      norm: { eps: 1e-6, gainOffset: 1 },
      positions: {
        rope: { theta: 1e6, scaling: { kind: 'linear', factor: 8 } },
        slidingRope: { theta: 1e4, scaling: { kind: 'none' } },
      },
      attention: { scale: 1 / 16, softcap: undefined, window: 1024 },
      logitSoftcap: undefined,
    });
    expect(found.attention.layers?.flatMap((kind, layer) => (kind === 'full' ? [layer] : []))).toEqual([
      5, 11, 17, 23, 29,
    ]);
  });

  test('gemma-2: softcaps, query scale and a sliding window in every second layer', () => {
    const shape = { hidden_size: 4608, num_hidden_layers: 2, num_attention_heads: 32, num_key_value_heads: 16 };
    const settings = { ...shape, model_type: 'gemma2', vocab_size: 256_000, intermediate_size: 36_864, head_dim: 128 };
    const found = config({ ...settings, query_pre_attn_scalar: 144, hidden_act: 'gelu' });
    expect(found.activation).toBe('gelu_tanh');
    expect(found.attention).toEqual({ scale: 1 / 12, softcap: 50, window: 4096, layers: ['sliding', 'full'] });
    expect(found.logitSoftcap).toBe(30);
  });

  test('gpt2: its own key names, an MLP of four times the hidden size', () => {
    const settings = {
      model_type: 'gpt2',
      vocab_size: 50_257,
      n_embd: 768,
      n_head: 12,
      n_layer: 12,
      n_positions: 1024,
    };
    expect(config({ ...settings, layer_norm_epsilon: 1e-5 })).toMatchObject({
      intermediateSize: 3072,
      headDim: 64,
      tieEmbeddings: true,
      activation: 'gelu_tanh',
      positions: { kind: 'learned', offset: 0 },
      biases: { qkv: true, attentionOutput: true, mlp: true },
    });
  });

  test('bloom-560m: n_embed, and no position embeddings', () => {
    const settings = { model_type: 'bloom', vocab_size: 250_880, n_embed: 1024, n_layer: 24, num_attention_heads: 16 };
    expect(config({ ...settings, n_inner: null })).toMatchObject({
      hiddenSize: 1024,
      intermediateSize: 4096,
      maxPositions: 2048,
      positions: { kind: 'alibi' },
      activation: 'gelu_tanh',
    });
  });

  test('opt and pythia', () => {
    expect(config(configJson({ ...ownHeads, architecture: 'opt' }))).toMatchObject({
      norm: { eps: 1e-5, gainOffset: 0 },
      positions: { kind: 'learned', offset: 2 },
      activation: 'relu',
    });
    const neox = configJson({ ...ownHeads, architecture: 'gpt_neox' });
    expect(config(neox)).toMatchObject({ parallelResidual: true, positions: { rotaryDim: 4 }, activation: 'gelu' });
    expect(config({ ...neox, use_parallel_residual: false }).parallelResidual).toBe(false);
  });
});

describe('RoPE for long contexts', () => {
  const rope = (settings: Record<string, unknown>) => {
    const { positions, maxPositions } = config({ ...configJson(tinySpec), ...settings });
    return { scaling: positions.kind === 'rope' ? positions.rope.scaling : undefined, maxPositions };
  };

  test('YaRN as in Qwen2.5 extends the positions', () => {
    const scaling = { type: 'yarn', factor: 4, original_max_position_embeddings: 256 };
    expect(rope({ rope_scaling: scaling })).toEqual({
      scaling: {
        kind: 'yarn',
        factor: 4,
        betaFast: 32,
        betaSlow: 1,
        truncate: true,
        originalMaxPositions: 256,
        magnitude: 0.1 * Math.log(4) + 1,
      },
      maxPositions: 1024,
    });
    const weighted = { ...scaling, mscale: 0.5, mscale_all_dim: 1, beta_fast: 16, truncate: false };
    expect(rope({ rope_scaling: weighted }).scaling).toMatchObject({
      betaFast: 16,
      truncate: false,
      magnitude: (0.05 * Math.log(4) + 1) / (0.1 * Math.log(4) + 1),
    });
  });

  test('longrope as in Phi-3', () => {
    const factors = { short_factor: [1, 1, 1, 1, 1, 1, 1, 2], long_factor: [1, 2, 3, 4, 5, 6, 7, 8] };
    const settings = { max_position_embeddings: 4096, original_max_position_embeddings: 256 };
    const found = rope({ ...settings, rope_scaling: { type: 'longrope', ...factors } });
    expect(found.maxPositions).toBe(4096);
    expect(found.scaling).toEqual({
      kind: 'longrope',
      shortDivisors: factors.short_factor,
      longDivisors: factors.long_factor,
      originalMaxPositions: 256,
      magnitude: Math.sqrt(1.5),
    });
    expect(() => rope({ rope_scaling: { type: 'longrope', ...factors, long_factor: [1] } })).toThrow(
      /1 factors for 8 frequencies \(key "rope_scaling\.long_factor"\)/,
    );
  });

  test('dynamic scaling has no effect within the maximum positions', () => {
    expect(rope({ rope_scaling: { type: 'dynamic', factor: 2 } })).toEqual({
      scaling: { kind: 'none' },
      maxPositions: 256,
    });
  });
});

test.each<[FamilyName, Record<string, unknown>, RegExp]>([
  ['opt', { do_layer_norm_before: false }, /false is not supported: only true \(key "do_layer_norm_before"\)/],
  ['opt', { word_embed_proj_dim: 512 }, /512 is not supported: only 64 \(key "word_embed_proj_dim"\)/],
  ['bloom', { apply_residual_connection_post_layernorm: true }, /true is not supported: only false/],
  ['gpt2', { scale_attn_by_inverse_layer_idx: true }, /key "scale_attn_by_inverse_layer_idx"/],
  ['gemma3_text', { use_bidirectional_attention: true }, /key "use_bidirectional_attention"/],
  ['llama', { quantization_config: { quant_method: 'gptq' } }, /"gptq".* is not supported: only none \(key "quant/],
  ['llama', { clip_qkv: 8 }, /8 is not supported: only none \(key "clip_qkv"\)/],
  ['gpt_neox', { hidden_act: 'gelu_10' }, /activation "gelu_10" is not supported/],
])('%s with %j is refused by key and value', (architecture, changes, message) => {
  expect(() => config({ ...configJson({ ...ownHeads, architecture }), ...changes })).toThrow(message);
});

test.each([
  ['llama', 'layers.0.mlp.up_proj.weight', 'model.layers.0.mlp.up_proj.weight'],
  ['gemma3', 'language_model.model.norm.weight', 'model.norm.weight'],
  ['gemma3', 'model.language_model.embed_tokens.weight', 'model.embed_tokens.weight'],
  ['gemma3', 'language_model.lm_head.weight', 'lm_head.weight'],
  ['gemma3', 'vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias', undefined],
  ['gpt2', 'h.3.attn.c_attn.weight', 'transformer.h.3.attn.c_attn.weight'],
  ['gpt2', 'transformer.wte.weight', undefined],
  ['bloom', 'word_embeddings.weight', 'transformer.word_embeddings.weight'],
  ['opt', 'decoder.embed_positions.weight', 'model.decoder.embed_positions.weight'],
  ['gpt_neox', 'layers.1.attention.dense.bias', 'gpt_neox.layers.1.attention.dense.bias'],
  ['gpt_neox', 'embed_out.weight', undefined],
])('%s reads %s as %s', (architecture, name, known = name) => {
  expect(checkpointName(architecture, name)).toBe(known);
});

describe.each(['gpt2', 'bloom', 'gpt_neox'] as const)('%s', (architecture) => {
  const spec = {
    ...ownHeads,
    architecture,
    intermediateSize: architecture === 'bloom' ? 256 : 96,
    tieEmbeddings: true,
  };

  test.each(['f32', 'bf16'] as const)('%s tensors are read in the model order, in ranges of any size', (type) => {
    const path = join(folder.path, `${architecture}-${type}`);
    writeHuggingFaceModel(path, spec, type);
    const files = openModel(path);
    for (const { name, shape, values } of randomTensors(spec)) {
      const info = expectTensor(files, name, shape);
      const bytes = files.read(info, 0, info.byteLength);
      const error = type === 'f32' ? 0 : 2 ** -8;
      const near = (value: number, index: number) => Math.abs(value - values[index]) <= Math.abs(value) * error;
      expect(dequantise(type, bytes).every(near), name).toBe(true);
      fc.assert(
        fc.property(fc.nat(info.byteLength), fc.nat(info.byteLength), (a, b) => {
          const [from, to] = [Math.min(a, b), Math.max(a, b)];
          expect(Buffer.compare(files.read(info, from, to - from), bytes.subarray(from, to))).toBe(0);
        }),
        { numRuns: 5 },
      );
    }
    files.close();
  });
});
