// Hugging Face directories: shards, configurations of both styles, generation defaults and tokenizer files.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { ModelFileError } from '../../src/weights/errors.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { dequantise } from '../../src/weights/quants/dequantise.ts';
import { expectTensor, type ModelFiles } from '../../src/weights/types.ts';
import { configJson } from './random-families.ts';
import { randomTensors, tinySpec, writeHuggingFaceModel } from './random-model.ts';
import { hasShared, sharedModels, temporaryFolder } from './temporary.ts';
import { writeSafetensors } from './writers.ts';

const folder = temporaryFolder();
let folders = 0;

/** A directory with the tiny model's tensors and a configuration with `changes`. */
function directory(changes: Record<string, unknown> = {}, files: Record<string, unknown> = {}): string {
  const path = join(folder.path, `model-${folders++}`);
  writeHuggingFaceModel(path, tinySpec, 'bf16');
  for (const [name, content] of Object.entries({ 'config.json': { ...configJson(tinySpec), ...changes }, ...files })) {
    writeFileSync(join(path, name), typeof content === 'string' ? content : JSON.stringify(content));
  }
  return path;
}

function withModel<T>(path: string, use: (files: ModelFiles) => T): T {
  const files = openModel(path);
  try {
    return use(files);
  } finally {
    files.close();
  }
}

const configOf = (changes: Record<string, unknown>) => withModel(directory(changes), (files) => files.config);

describe('a directory without weights', () => {
  test('opens for its text and configuration alone', () => {
    const path = directory();
    rmSync(join(path, 'model.safetensors'));
    expect(() => openModel(path)).toThrow(ModelFileError);
    const files = openModel(path, false);
    expect([files.config.vocabSize, [...files.tensors()].length]).toEqual([tinySpec.vocabSize, 0]);
    files.close();
  });
});

describe('safetensors', () => {
  test.each(['f32', 'f16', 'bf16'] as const)('%s tensors', (type) => {
    const path = join(folder.path, type);
    writeHuggingFaceModel(path, tinySpec, type);
    withModel(path, (files) => {
      expect(files.id).toBe(type);
      for (const { name, shape, values } of randomTensors(tinySpec)) {
        const info = expectTensor(files, name, shape);
        const read = dequantise(type, files.read(info, 0, info.byteLength));
        const error = { f32: 0, f16: 2 ** -11, bf16: 2 ** -8 }[type];
        expect(
          read.every((value, index) => Math.abs(value - (values[index] ?? 0)) <= Math.abs(value) * error + 2 ** -25),
        ).toBe(true);
      }
    });
  });

  test('shards are found by their index; a missing one is named', () => {
    const path = join(folder.path, 'sharded');
    mkdirSync(path);
    const tensor = (name: string, value: number) => ({
      name,
      dtype: 'F32',
      shape: [2, 1],
      bytes: new Uint8Array(Float32Array.of(value, -value).buffer),
    });
    const shard = (part: number): string => `model-0000${part}-of-00002.safetensors`;
    const index = { metadata: { total_size: 16 }, weight_map: { a: shard(1), b: shard(2) } };
    writeFileSync(join(path, 'config.json'), JSON.stringify(configJson(tinySpec)));
    writeFileSync(join(path, 'model.safetensors.index.json'), JSON.stringify(index));
    writeFileSync(join(path, shard(1)), writeSafetensors([tensor('a', 1)]));
    expect(() => openModel(path)).toThrow(/model-00002-of-00002\.safetensors: ENOENT/);
    writeFileSync(join(path, shard(2)), writeSafetensors([tensor('c', 2)]));
    expect(() => openModel(path)).toThrow(
      'the tensor is not in the file that model.safetensors.index.json names (tensor "b")',
    );
    writeFileSync(join(path, shard(2)), writeSafetensors([tensor('b', 2)]));
    withModel(path, (files) => {
      const info = expectTensor(files, 'b', [2, 1]);
      expect([...dequantise('f32', files.read(info, 4, 4))]).toEqual([-2]);
      expect(info.file).toBe(join(path, shard(2)));
    });
    index.weight_map.b = `../sharded/${shard(2)}`;
    writeFileSync(join(path, 'model.safetensors.index.json'), JSON.stringify(index));
    expect(() => openModel(path)).toThrow('not a plain file name');
  });

  test('a tensor of an unsupported type fails when it is requested, not before', () => {
    const path = directory();
    const bytes = new Uint8Array(16);
    writeFileSync(
      join(path, 'model.safetensors'),
      writeSafetensors([{ name: 'ids', dtype: 'I64', shape: [2], bytes }]),
    );
    withModel(path, (files) => {
      expect([...files.unsupportedTensors()]).toEqual([{ name: 'ids', typeName: 'I64', shape: [2] }]);
      expect(() => files.tensor('ids')).toThrow(/tensors of type I64 are not supported.*tensor "ids", offset \d+/);
      expect(files.tensor('other')).toBeUndefined();
    });
  });

  test('a wrong shape and a missing tensor are named', () => {
    withModel(directory(), (files) => {
      expect(() => expectTensor(files, 'model.norm.weight', [65])).toThrow(
        /model\.safetensors: shape \[64\] where the configuration requires \[65\] \(tensor "model\.norm\.weight", offset \d+\)$/,
      );
      expect(() => expectTensor(files, 'gone', [1, 2])).toThrow(
        'the tensor is missing: shape [1, 2] expected (tensor "gone")',
      );
    });
  });
});

describe('config.json', () => {
  test('both RoPE styles', () => {
    const llama3 = { factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 128 };
    const scaling = { kind: 'llama3', factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalMaxPositions: 128 };
    const legacy = configOf({ rope_theta: 5e5, rope_scaling: { ...llama3, rope_type: 'llama3' } });
    const modern = configOf({
      rope_theta: undefined,
      rope_parameters: { ...llama3, rope_type: 'llama3', rope_theta: 5e5 },
    });
    expect(legacy.positions).toEqual({
      kind: 'rope',
      rotaryDim: 16,
      rope: { theta: 5e5, scaling },
      slidingRope: undefined,
    });
    expect(modern).toEqual(legacy);
    expect(configOf({ rope_scaling: { type: 'linear', factor: 2 } }).positions).toMatchObject({
      rope: { scaling: { kind: 'linear', factor: 2 } },
    });
    expect(configOf({ rope_scaling: null }).positions).toMatchObject({
      rope: { theta: 10_000, scaling: { kind: 'none' } },
    });
    const beside = { rope_type: 'default', rope_theta: 1e6 };
    expect(
      configOf({ rope_theta: 5e5, rope_scaling: { ...llama3, rope_type: 'llama3' }, rope_parameters: beside }),
    ).toEqual(legacy);
    const half = { rope_type: 'default', partial_rotary_factor: 0.5 };
    expect(configOf({ rope_parameters: half }).positions).toMatchObject({ rotaryDim: 8 });
  });

  test('defaults of each model type', () => {
    const silent = { head_dim: undefined, tie_word_embeddings: undefined, rope_theta: undefined };
    expect(configOf(silent)).toMatchObject({
      headDim: 16,
      tieEmbeddings: false,
      biases: { qkv: false, attentionOutput: false, mlp: false },
      positions: { rope: { theta: 10_000 } },
    });
    expect(configOf({ ...silent, model_type: 'qwen2' })).toMatchObject({
      biases: { qkv: true, attentionOutput: false, mlp: false },
    });
    expect(configOf({ ...silent, model_type: 'qwen3' })).toMatchObject({ headDim: 128, biases: { qkv: false } });
    expect(configOf({ attention_bias: true })).toMatchObject({ biases: { qkv: true, attentionOutput: true } });
    expect(configOf({ num_key_value_heads: null }).kvHeads).toBe(4);
  });

  test('sliding windows', () => {
    const windowOf = (changes: Record<string, unknown>) => {
      const { window, layers } = configOf(changes).attention;
      return { window, layers };
    };
    const none = { window: undefined, layers: undefined };
    expect(windowOf({ sliding_window: 64 })).toEqual(none);
    expect(windowOf({ model_type: 'mistral' })).toEqual({ window: 4096, layers: undefined });
    expect(windowOf({ model_type: 'mistral', sliding_window: null })).toEqual(none);
    expect(windowOf({ model_type: 'phi3', sliding_window: 64 })).toEqual({ window: 64, layers: undefined });
    const qwen = { model_type: 'qwen2', sliding_window: 64, max_window_layers: 1 };
    expect(windowOf(qwen)).toEqual(none);
    expect(windowOf({ ...qwen, use_sliding_window: true }).layers).toEqual(['full', 'sliding']);
    expect(windowOf({ model_type: 'gemma2' })).toEqual({ window: 4096, layers: ['sliding', 'full'] });
    const gemma3 = { model_type: 'gemma3_text', sliding_window: 512, sliding_window_pattern: 3, num_hidden_layers: 4 };
    expect(windowOf(gemma3).layers).toEqual(['sliding', 'sliding', 'full', 'sliding']);
    const listed = { model_type: 'mistral', sliding_window: 64, layer_types: ['sliding_attention', 'full_attention'] };
    expect(windowOf(listed).layers).toEqual(['sliding', 'full']);
  });

  test.each<[string, Record<string, unknown>, RegExp]>([
    [
      'an unknown scaling',
      { rope_scaling: { type: 'xpos', factor: 4 } },
      /rope scaling "xpos" is not supported: known are default, linear, dynamic, llama3, yarn, longrope \(key "rope_scaling"\)$/,
    ],
    [
      'a scaling without its factor',
      { rope_scaling: { rope_type: 'linear' } },
      /the value is missing.*key "rope_scaling\.factor"/,
    ],
    ['a negative theta', { rope_theta: -1 }, /key "rope_theta"/],
    ['a missing size', { hidden_size: undefined }, /the value is missing \(key "hidden_size"\)/],
    ['a size of 10^12', { hidden_size: 1e12 }, /key "hidden_size"/],
    ['a count of 10^6 layers', { num_hidden_layers: 1e6 }, /key "num_hidden_layers"/],
    ['a fraction', { vocab_size: 10.5 }, /key "vocab_size"/],
    ['a text for a number', { vocab_size: '96' }, /key "vocab_size"/],
    [
      'heads that do not divide',
      { num_key_value_heads: 3 },
      /4 heads cannot share 3 key heads \(key "num_key_value_heads"\)/,
    ],
    ['an unknown activation', { hidden_act: 'tan' }, /activation "tan" is not supported: known are silu/],
    [
      'a list of layers too short',
      { model_type: 'mistral', sliding_window: 8, layer_types: ['full_attention'] },
      /1 entries for 2 layers/,
    ],
    ['no model type', { model_type: undefined }, /key "model_type"/],
  ])('%s is refused by key', (_, changes, message) => {
    expect(() => configOf(changes)).toThrow(ModelFileError);
    expect(() => configOf(changes)).toThrow(message);
  });

  test('a file that is not JSON, or missing', () => {
    const broken = directory({}, { 'config.json': '{"model_type": NaN}' });
    expect(() => withModel(broken, (files) => files.config)).toThrow(/config\.json: invalid JSON: /);
    expect(() => openModel(join(folder.path, 'nowhere'))).toThrow(/nowhere: ENOENT/);
    expect(() => openModel(folder.path)).toThrow('the directory has no config.json and 0 GGUF files: name one');
  });
});

describe('generation_config.json and tokenizer files', () => {
  test('defaults come from the file, with all end-of-sequence ids', () => {
    const generation = {
      temperature: 0.6,
      top_p: 0.9,
      top_k: 20,
      eos_token_id: [7, 8],
      do_sample: true,
      max_new_tokens: 512,
    };
    const defaults = withModel(
      directory({}, { 'generation_config.json': generation }),
      (files) => files.generationDefaults,
    );
    expect(defaults).toEqual({ temperature: 0.6, topP: 0.9, topK: 20, maxNewTokens: 512, eosIds: [7, 8, 2] });
    expect(withModel(directory(), (files) => files.generationDefaults)).toEqual({ eosIds: [2] });
    const wrong = directory({}, { 'generation_config.json': { temperature: 'hot' } });
    expect(() => withModel(wrong, (files) => files.generationDefaults)).toThrow(
      /generation_config\.json.*key "temperature"/,
    );
  });

  test('chat templates: in the configuration, by name, or in a separate file', () => {
    const tokenizer = (files: Record<string, unknown>) =>
      withModel(directory({}, { 'tokenizer.json': '{}', ...files }), (model) => model.tokenizer);
    expect(tokenizer({})).toEqual({ kind: 'huggingface', tokenizerJson: '{}' });
    expect(tokenizer({ 'tokenizer_config.json': { chat_template: 'one' } })).toMatchObject({ chatTemplate: 'one' });
    const named = [
      { name: 'tools', template: 'a' },
      { name: 'default', template: 'b' },
    ];
    expect(tokenizer({ 'tokenizer_config.json': { chat_template: named } })).toMatchObject({ chatTemplate: 'b' });
    const tools = [...named, { name: 'tool_use', template: 'c' }];
    expect(tokenizer({ 'tokenizer_config.json': { chat_template: tools } })).toMatchObject({ toolTemplate: 'c' });
    const both = { 'tokenizer_config.json': { chat_template: 'one' }, 'chat_template.jinja': 'two' };
    expect(tokenizer(both)).toMatchObject({ chatTemplate: 'two', tokenizerConfig: { chat_template: 'one' } });
    expect(withModel(directory(), (model) => model.tokenizer)).toBeUndefined();
  });
});

describe.skipIf(!hasShared)('the random models (needs ../shared/models/random)', () => {
  const names =
    'bloom-alibi gemma2 gemma3 gpt2 gptneox-parallel llama-linear llama2-mha llama3-rope mistral-window opt phi3 qwen2 qwen3';
  test.each(names.split(' '))('%s opens, and its configuration and tensors can be read', (name) => {
    const path = join(sharedModels, 'random', name);
    withModel(path, (files) => {
      const raw: unknown = JSON.parse(readFileSync(join(path, 'config.json'), 'utf8'));
      const { config } = files;
      expect(raw).toMatchObject({ model_type: expect.stringMatching(`^${config.architecture}(_text)?$`) });
      expect(config).toMatchObject({ vocabSize: 1024, hiddenSize: 128, heads: 4, eosIds: [2] });
      expect(files.tokenizer).toBeUndefined();
      for (const info of files.tensors()) {
        expect(files.read(info, info.byteLength - 2, 2).byteLength).toBe(2);
        expect(info.type).toBe('bf16');
      }
    });
  });
});
