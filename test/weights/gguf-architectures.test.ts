// GGUF files of every architecture against the safetensors checkpoints they were converted from: configuration and all
// values.
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { ModelConfig } from '../../src/util/model-config.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { dequantise } from '../../src/weights/quants/dequantise.ts';
import type { ModelFiles } from '../../src/weights/types.ts';
import { convert } from '../../tools/write-gguf/convert.mjs';
import { type RandomModelSpec, tinySpec } from './random-model.ts';
import { hasShared, sharedModels, temporaryFolder } from './temporary.ts';
import { bool, f32, type GgufValue, numbers, text, u32, writeGguf } from './writers.ts';

const folder = temporaryFolder();

function values(files: ModelFiles, name: string): Float32Array {
  const info = files.tensor(name);
  if (info === undefined) throw new Error(`no tensor ${name}`);
  return dequantise(info.type, files.read(info, 0, info.byteLength));
}

/**
 * Known differences of GGUF: numbers are float32, Gemma's gains are final, Llama 3's scaling is a list, Mistral is
 * named llama.
 */
function comparable(config: ModelConfig): unknown {
  const { positions, attention } = config;
  return {
    ...config,
    architecture: config.architecture.replace('mistral', 'llama'),
    norm: Math.fround(config.norm.eps),
    positions:
      positions.kind === 'rope'
        ? { ...positions, rope: /llama3|divisors/.test(positions.rope.scaling.kind) || positions.rope }
        : positions,
    attention: config.architecture === 'gemma2' ? { ...attention, scale: 0 } : attention,
  };
}

describe.skipIf(!hasShared)('random models as GGUF (needs ../shared/models)', () => {
  test.each([
    'llama2-mha',
    'llama3-rope',
    'llama-linear',
    'mistral-window',
    'qwen2',
    'qwen3',
    'gemma2',
    'gemma3',
    'phi3',
    'gpt2',
  ])('%s: the configuration and every value', (name) => {
    const source = join(sharedModels, 'random', name);
    const path = join(folder.path, `${name}.gguf`);
    convert(source, path);
    const [hf, gguf] = [openModel(source), openModel(path)];
    expect(comparable(gguf.config)).toEqual(comparable(hf.config));
    const { gainOffset } = hf.config.norm;
    // Gemma 2's query scale is folded into the converted weights: no key holds it.
    const queryScale = gguf.config.attention.scale / hf.config.attention.scale;
    for (const tensor of hf.tensors()) {
      const expected = values(hf, tensor.name);
      const factor = tensor.name.includes('.q_proj.') ? queryScale : 1;
      const wanted =
        gainOffset === 1 && tensor.name.endsWith('norm.weight')
          ? expected.map((value) => value + 1)
          : expected.map((value) => value / factor);
      expect(gguf.tensor(tensor.name)?.shape, tensor.name).toEqual(tensor.shape);
      const got = values(gguf, tensor.name);
      expect(
        got.every((value, at) => Math.abs(value - wanted[at]) <= 2 ** -22 * Math.abs(wanted[at])),
        tensor.name,
      ).toBe(true);
    }
    expect(gguf.tokenizer).toBeUndefined();
    hf.close();
    gguf.close();
  });
});

type Entry = readonly [string, GgufValue];

function configOf(architecture: string, ...extra: readonly Entry[]): ModelConfig {
  return configWith(architecture, extra, {});
}

/** The configuration of a file with these keys and these float32 tensors. */
function configWith(
  architecture: string,
  extra: readonly Entry[],
  vectors: Readonly<Record<string, readonly number[]>>,
): ModelConfig {
  const spec: RandomModelSpec = tinySpec;
  const sizes: Entry[] = [
    ['context_length', u32(8192)],
    ['embedding_length', u32(spec.hiddenSize)],
    ['block_count', u32(6)],
    ['feed_forward_length', u32(96)],
    ['attention.head_count', u32(spec.heads)],
    ['attention.layer_norm_rms_epsilon', f32(1e-6)],
    ['vocab_size', u32(96)],
  ];
  const own = new Map<string, GgufValue>([...sizes, ...extra].map(([key, value]) => [`${architecture}.${key}`, value]));
  const tensors = Object.entries(vectors).map(([name, list]) => {
    const bytes = new Uint8Array(Float32Array.from(list).buffer);
    return { name, type: 'f32' as const, shape: [list.length], bytes };
  });
  const bytes = writeGguf({ metadata: [['general.architecture', text(architecture)], ...own], tensors });
  const files = openModel(folder.write(`${architecture}.gguf`, bytes));
  try {
    return files.config;
  } finally {
    files.close();
  }
}

describe('defaults by architecture', () => {
  test('Gemma 2: a window in every second layer, softcaps, and the query scale of its largest size', () => {
    const { attention, logitSoftcap, activation } = configOf('gemma2');
    expect(attention.layers?.map((kind) => kind[0]).join('')).toBe('sfsfsf');
    expect({ ...attention, layers: 0 }).toEqual({ scale: 0.25, softcap: 50, window: 4096, layers: 0 });
    expect([logitSoftcap, activation]).toEqual([30, 'gelu_tanh']);
    expect(
      configOf(
        'gemma2',
        ['block_count', u32(46)],
        ['attention.key_length', u32(32)],
        ['attention.value_length', u32(32)],
      ).attention.scale,
    ).toBe(0.25);
  });

  test('Gemma 3: every sixth layer has full attention, the others a RoPE base of their own', () => {
    const sliding = configOf('gemma3', ['attention.sliding_window', u32(512)], ['rope.freq_base', f32(1e6)]);
    expect(sliding.attention.layers?.map((kind) => kind[0]).join('')).toBe('sssssf');
    expect(sliding.positions).toMatchObject({
      rope: { theta: 1e6 },
      slidingRope: { theta: 10_000, scaling: { kind: 'none' } },
    });
    expect(configOf('gemma3').attention).toMatchObject({ window: undefined, layers: undefined });
  });

  test('a window pattern is a number or a list of layers', () => {
    const window: Entry = ['attention.sliding_window', u32(64)];
    const key = 'attention.sliding_window_pattern';
    const kinds = (entry: Entry) =>
      configOf('llama', window, entry)
        .attention.layers?.map((kind) => kind[0])
        .join('');
    expect(configOf('llama', window).attention).toMatchObject({ window: 64, layers: undefined });
    expect(kinds([key, u32(3)])).toBe('ssfssf');
    const flags = [true, false, false, true, true, false].map(bool);
    expect(kinds([key, { type: 'array', itemType: 'bool', items: flags }])).toBe('sffssf');
    expect(() => kinds([key, { type: 'array', itemType: 'bool', items: flags.slice(1) }])).toThrow(
      /5 entries for 6 layers/,
    );
    expect(() => configOf('llama', ['attention.sliding_window', numbers('u32', [64, 32])])).toThrow(
      /layers with different values/,
    );
  });

  test('Phi-3 for long contexts: both sets of divisors and their magnitude', () => {
    const divisors = [1, 1, 1.5, 2, 2, 3, 4, 4];
    const longDivisors = divisors.map((value) => value * 8);
    const both = { 'rope_factors_short.weight': divisors, 'rope_factors_long.weight': longDivisors };
    const keys: Entry[] = [
      ['rope.scaling.attn_factor', f32(1.25)],
      ['rope.scaling.original_context_length', u32(4096)],
    ];
    const config = configWith('phi3', keys, both);
    const scaling = { kind: 'longrope', shortDivisors: divisors, longDivisors, originalMaxPositions: 4096 };
    expect(config.positions).toMatchObject({ rope: { scaling: { ...scaling, magnitude: 1.25 } } });
    expect(() => configWith('phi3', keys.slice(0, 1), both)).toThrow(/original_context_length/);
    expect(() => configWith('phi3', [...keys, ['rope.dimension_count', u32(12)]], both)).toThrow(
      /shape \[8\] where .* \[6\]/,
    );
    expect(() => configOf('phi3', ['rope.scaling.type', text('longrope')])).toThrow(
      /the tensor is missing.*rope_factors_short/,
    );
  });
});
