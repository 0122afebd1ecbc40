// GGUF files: naming, row order, metadata, configuration and vocabulary.
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { openModel } from '../../src/weights/open-model.ts';
import { dequantise } from '../../src/weights/quants/dequantise.ts';
import { expectTensor, type ModelFiles, rowBytes } from '../../src/weights/types.ts';
import {
  ggufMetadata,
  ggufTensors,
  type RandomModelSpec,
  randomTensors,
  tinySpec,
  writeGgufModel,
  writeHuggingFaceModel,
} from './random-model.ts';
import { hasShared, sharedModels, temporaryFolder } from './temporary.ts';
import { bool, f32, type GgufValue, numbers, text, texts, u32, writeGguf } from './writers.ts';

const folder = temporaryFolder();

function values(files: ModelFiles, name: string, shape: readonly number[]): Float32Array {
  const info = expectTensor(files, name, shape);
  return dequantise(info.type, files.read(info, 0, info.byteLength));
}

function ggufWith(name: string, ...extra: (readonly [string, GgufValue])[]): ModelFiles {
  const metadata = [...ggufMetadata(tinySpec).filter(([key]) => !extra.some(([other]) => other === key)), ...extra];
  return openModel(folder.write(name, writeGguf({ metadata, tensors: ggufTensors(tinySpec, 'f32') })));
}

describe('tensors of a GGUF file', () => {
  const specs: RandomModelSpec[] = [
    tinySpec,
    { ...tinySpec, architecture: 'qwen2', tieEmbeddings: true },
    { ...tinySpec, architecture: 'qwen3', headDim: 32, heads: 2, kvHeads: 1 },
  ];
  test.each(specs)('$architecture: names, shapes and row order are those of Hugging Face', (spec) => {
    const path = join(folder.path, `${spec.architecture}.gguf`);
    writeGgufModel(path, spec, 'f32');
    const files = openModel(path);
    const expected = randomTensors(spec);
    expect([...files.tensors()].map(({ name }) => name)).toEqual(expected.map(({ name }) => name));
    for (const tensor of expected) expect(values(files, tensor.name, tensor.shape)).toEqual(tensor.values);
    files.close();
  });

  test('a range read of a reordered tensor equals that range of the whole tensor', () => {
    const path = join(folder.path, 'ranges.gguf');
    writeGgufModel(path, tinySpec, 'q4_1');
    const files = openModel(path);
    const info = expectTensor(files, 'model.layers.1.self_attn.q_proj.weight', [64, 64]);
    const whole = files.read(info, 0, info.byteLength);
    const place = fc.integer({ min: 0, max: info.byteLength });
    fc.assert(
      fc.property(place, place, (a, b) => {
        const [start, end] = a < b ? [a, b] : [b, a];
        const into = new Uint8Array(end - start + 7);
        const bytes = files.read(info, start, end - start, into);
        expect(bytes.buffer).toBe(into.buffer);
        expect(Buffer.compare(bytes, whole.subarray(start, end))).toBe(0);
      }),
    );
    expect(() => files.read(info, 8, info.byteLength)).toThrow(RangeError);
    expect(() => files.read(info, 0, 64, new Uint8Array(63))).toThrow(RangeError);
    expect(rowBytes(info)).toBe(40);
    files.close();
  });

  test('equals the safetensors form of the same model', () => {
    const spec = { ...tinySpec, seed: 5, tieEmbeddings: true };
    const directory = join(folder.path, 'same');
    writeHuggingFaceModel(directory, spec, 'bf16');
    writeGgufModel(join(folder.path, 'same.gguf'), spec, 'bf16');
    const [hf, gguf] = [openModel(directory), openModel(join(folder.path, 'same.gguf'))];
    for (const info of hf.tensors()) {
      if (info.shape.length > 1) expect(values(gguf, info.name, info.shape)).toEqual(values(hf, info.name, info.shape));
    }
    const comparable = ({ config }: ModelFiles) => ({
      ...config,
      norm: { ...config.norm, eps: Math.fround(config.norm.eps) },
      bosId: 0,
      eosIds: [],
    });
    expect(comparable(gguf)).toEqual(comparable(hf));
    hf.close();
    gguf.close();
  });
});

describe('metadata of a GGUF file', () => {
  test('version 2, another alignment and every value type are read', () => {
    const metadata = [
      ...ggufMetadata(tinySpec),
      ['x.i8', { type: 'i8', value: -3 }],
      ['x.u64', { type: 'u64', value: 2n ** 63n }],
      ['x.f64', { type: 'f64', value: 0.5 }],
      ['x.nested', { type: 'array', itemType: 'array', items: [numbers('i16', [1, 2]), texts(['a', 'b'])] }],
    ] satisfies (readonly [string, GgufValue])[];
    const bytes = writeGguf({ metadata, tensors: ggufTensors(tinySpec, 'q8_0'), version: 2, alignment: 256 });
    const files = openModel(folder.write('v2.gguf', bytes));
    expect([...files.tensors()].every(({ offset }) => offset % 256 === 0)).toBe(true);
    expect(files.config.layers).toBe(2);
    files.close();
  });

  test('RoPE scaling: linear from a key, llama3 from a tensor of divisors', () => {
    const linear = ggufWith(
      'linear.gguf',
      ['llama.rope.scaling.type', text('linear')],
      ['llama.rope.scaling.factor', f32(4)],
    );
    expect(linear.config.positions).toMatchObject({ rope: { theta: 10_000, scaling: { kind: 'linear', factor: 4 } } });
    linear.close();
    const divisors = [1, 1, 2, 4, 8, 8, 8, 8];
    const bytes = new Uint8Array(Float32Array.from(divisors).buffer);
    const tensors = [
      ...ggufTensors(tinySpec, 'f32'),
      { name: 'rope_freqs.weight', type: 'f32' as const, shape: [8], bytes },
    ];
    const files = openModel(folder.write('divisors.gguf', writeGguf({ metadata: ggufMetadata(tinySpec), tensors })));
    expect(files.config.positions).toMatchObject({ rope: { scaling: { kind: 'divisors', divisors } } });
    files.close();
    const xpos = ggufWith('xpos.gguf', ['llama.rope.scaling.type', text('xpos')]);
    expect(() => xpos.config).toThrow(
      /rope scaling "xpos" is not supported: known are none, linear, yarn, longrope \(key "llama.rope.scaling.type", offset \d+\)/,
    );
    xpos.close();
    const yarn = ggufWith(
      'yarn.gguf',
      ['llama.rope.scaling.type', text('yarn')],
      ['llama.rope.scaling.factor', f32(4)],
      ['llama.rope.scaling.original_context_length', u32(128)],
    );
    const scaling = { kind: 'yarn', factor: 4, originalMaxPositions: 128, magnitude: 1 + 0.1 * Math.log(4) };
    expect(yarn.config).toMatchObject({ maxPositions: 512, positions: { rope: { scaling } } });
    yarn.close();
  });

  test('vocabulary, end-of-sequence ids and sampling defaults', () => {
    const files = ggufWith(
      'vocabulary.gguf',
      ['tokenizer.ggml.model', text('llama')],
      ['tokenizer.ggml.tokens', texts(['<s>', '</s>', 'Ġä', '<|end|>'])],
      ['tokenizer.ggml.scores', numbers('f32', [0, 0, -1.5, 0])],
      ['tokenizer.ggml.token_type', numbers('i32', [3, 3, 1, 3])],
      ['tokenizer.ggml.bos_token_id', u32(0)],
      ['tokenizer.ggml.eos_token_id', u32(1)],
      ['tokenizer.ggml.eot_token_id', u32(3)],
      ['tokenizer.ggml.padding_token_id', u32(0xffff_ffff)],
      ['tokenizer.ggml.add_bos_token', bool(true)],
      ['tokenizer.chat_template', text('{{ messages }}')],
      ['general.sampling.temp', f32(0.6)],
      ['general.sampling.top_p', f32(0.95)],
    );
    expect(files.tokenizer).toEqual({
      kind: 'gguf',
      data: {
        model: 'llama',
        tokens: ['<s>', '</s>', 'Ġä', '<|end|>'],
        scores: Float32Array.of(0, 0, -1.5, 0),
        tokenTypes: Int32Array.of(3, 3, 1, 3),
        bosId: 0,
        eosId: 1,
        eotId: 3,
        addBos: true,
        chatTemplate: '{{ messages }}',
      },
    });
    expect(files.generationDefaults).toEqual({ temperature: 0.6, topP: 0.95, eosIds: [1, 3] });
    expect(files.config.eosIds).toEqual([1, 3]);
    files.close();
  });

  test('a model without a vocabulary has no tokenizer', () => {
    const files = ggufWith('none.gguf');
    expect(files.tokenizer).toBeUndefined();
    expect(files.id).toBe('none');
    files.close();
  });
});

describe.skipIf(!hasShared)('kvasir-tiny in both forms (needs ../shared/models)', () => {
  test('every GGUF tensor is close to its safetensors tensor, q and k included', () => {
    const hf = openModel(join(sharedModels, 'kvasir-tiny'));
    const gguf = openModel(join(sharedModels, 'kvasir-tiny/kvasir-tiny-q8_0.gguf'));
    let compared = 0;
    for (const { name, shape } of hf.tensors()) {
      const [a, b] = [values(hf, name, shape), values(gguf, name, shape)];
      const largest = a.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      // Half a Q8_0 step plus the rounding error of its scale.
      const bound = largest * (1 / 254 + 2 ** -10);
      expect(a.every((value, index) => Math.abs(value - (b[index] ?? Number.NaN)) <= bound)).toBe(true);
      compared++;
    }
    expect(compared).toBe(56);
    expect([...gguf.tensors()].length).toBe(56);
    expect({ ...gguf.config, norm: 0, eosIds: [] }).toEqual({ ...hf.config, norm: 0, eosIds: [] });
    expect(hf.generationDefaults).toEqual({ temperature: 0.7, topP: 0.95, eosIds: [1, 6] });
    expect(gguf.generationDefaults.eosIds).toEqual([1, 6]);
    expect(hf.tokenizer?.kind).toBe('huggingface');
    expect(gguf.tokenizer?.kind).toBe('gguf');
    hf.close();
    gguf.close();
  });

  test('a folder with one GGUF file opens as that file', () => {
    const files = openModel(join(sharedModels, 'SmolLM2-135M-Instruct'));
    expect(files.id).toBe('SmolLM2-135M-Instruct.Q4_1');
    expect(expectTensor(files, 'model.embed_tokens.weight', [49_152, 576]).type).toBe('q8_0');
    expect(files.config).toMatchObject({ heads: 9, kvHeads: 3, headDim: 64, layers: 30, tieEmbeddings: true });
    files.close();
  });
});
