// Corrupt and truncated files give a one-line error with file and location, and allocate no memory for false sizes.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ModelFileError } from '../../src/weights/errors.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { configJson } from './random-families.ts';
import { ggufMetadata, ggufTensors, tinySpec, writeHuggingFaceModel } from './random-model.ts';
import { temporaryFolder } from './temporary.ts';
import {
  type GgufSpec,
  type GgufTensorSpec,
  numbers,
  rawSafetensors,
  text,
  texts,
  u32,
  writeGguf,
  writeSafetensors,
} from './writers.ts';

const folder = temporaryFolder();
const directory = join(folder.path, 'model');
writeHuggingFaceModel(directory, tinySpec, 'bf16');

const tinyGguf: GgufSpec = {
  metadata: [
    ...ggufMetadata(tinySpec).filter(([key]) => key !== 'tokenizer.ggml.model'),
    ['tokenizer.ggml.model', text('llama')],
    ['tokenizer.ggml.tokens', texts(Array.from({ length: 96 }, (_, id) => `tok\u00e9n${id}`))],
    ['tokenizer.ggml.scores', numbers('f32', new Array<number>(96).fill(0.5))],
    ['tokenizer.ggml.eos_token_id', u32(2)],
  ],
  tensors: ggufTensors({ ...tinySpec, layers: 1 }, 'q4_0'),
};

/** Reads everything that an opened model offers. */
function useAll(path: string): void {
  const files = openModel(path);
  try {
    for (const info of files.tensors()) {
      const bytes = new Uint8Array(Math.min(info.byteLength, 1 << 16));
      files.read(info, 0, bytes.byteLength, bytes);
    }
    for (const part of [files.config, files.generationDefaults, files.tokenizer]) JSON.stringify(part);
  } finally {
    files.close();
  }
}

function problemOf(path: string): ModelFileError {
  try {
    useAll(path);
  } catch (error) {
    if (error instanceof ModelFileError) return error;
    throw error;
  }
  throw new Error('no error was found');
}

function ggufProblem(spec: Partial<GgufSpec>): ModelFileError {
  return problemOf(folder.write('hostile.gguf', writeGguf({ ...tinyGguf, ...spec })));
}

function changed(place: number, change: Partial<GgufTensorSpec>): GgufTensorSpec[] {
  return tinyGguf.tensors.map((tensor, index) => (index === place ? { ...tensor, ...change } : tensor));
}

describe('invalid GGUF files', () => {
  const tera = 10n ** 12n;
  const many = { tensors: [], metadata: [] };
  test.each<[string, Partial<GgufSpec>, RegExp]>([
    ['10^12 tensors', { ...many, tensorCount: tera }, /the tensor count claims 1000000000000 items .* \(offset 8\)$/],
    [
      '2^64 - 1 metadata entries',
      { ...many, metadataCount: 2n ** 64n - 1n },
      /the metadata count claims 18446744073709551615 items/,
    ],
    ['a missing last tensor', { tensorCount: BigInt(tinyGguf.tensors.length + 1) }, /hostile\.gguf: /],
    [
      'a tensor of 10^12 elements',
      { tensors: changed(1, { shape: [tera] }) },
      /its 4000000000000 bytes at \d+ end past the file's \d+ bytes \(tensor "blk\.0\.attn_norm\.weight", offset \d+\)$/,
    ],
    [
      'an overflowing shape',
      { tensors: changed(0, { shape: [2n ** 40n, 2n ** 40n] }) },
      /shape .* overflows \(tensor "token_embd\.weight"/,
    ],
    ['a dimension of 2^63', { tensors: changed(0, { shape: [2n ** 63n] }) }, /dimension 0 is 9223372036854775808/],
    ['a dimension of 0', { tensors: changed(0, { shape: [0, 64] }) }, /dimension 1 is 0/],
    [
      'five dimensions',
      { tensors: changed(0, { shape: [1, 1, 1, 1, 64] }) },
      /it has 5 dimensions where 1 to 4 are allowed/,
    ],
    [
      'half a block',
      { tensors: changed(0, { shape: [96, 48] }) },
      /rows of 48 elements are not whole blocks of 32 \(q4_0\)/,
    ],
    ['an offset past the end', { tensors: changed(2, { offset: tera }) }, /its data starts 1000000000000 bytes into/],
    [
      'an offset between alignments',
      { tensors: changed(2, { offset: 33 }) },
      /its data starts at 33, not a multiple of the alignment 32/,
    ],
    ['overlapping tensors', { tensors: changed(2, { offset: 0 }) }, /it overlaps tensor /],
    [
      'the same name twice',
      { tensors: changed(2, { name: 'token_embd.weight' }) },
      /two tensors have this name \(tensor "token_embd\.weight"/,
    ],
    [
      'two names for one tensor',
      { tensors: changed(2, { name: 'model.embed_tokens.weight' }) },
      /two tensors have this name/,
    ],
    [
      'the same key twice',
      { metadata: [...tinyGguf.metadata, ['general.architecture', text('llama')]] },
      /two metadata entries have this key/,
    ],
    [
      'an alignment of 0',
      { metadata: [...tinyGguf.metadata, ['general.alignment', u32(0)]] },
      /the alignment 0 is not a power of two from 8/,
    ],
    [
      'an alignment of 2^31',
      { metadata: [...tinyGguf.metadata, ['general.alignment', u32(2 ** 31)]] },
      /the alignment 2147483648/,
    ],
    [
      'an alignment as text',
      { metadata: [...tinyGguf.metadata, ['general.alignment', text('32')]] },
      /a finite number was expected, not a string \(key "general\.alignment"/,
    ],
    ['version 1', { version: 1 }, /GGUF version 1 is not supported: known are 2 and 3/],
    ['big-endian', { version: 0x03000000 }, /big-endian GGUF files are not supported/],
    [
      'an id outside the vocabulary',
      { metadata: [...tinyGguf.metadata, ['tokenizer.ggml.bos_token_id', u32(96)]] },
      /token id 96 is outside the vocabulary of 96/,
    ],
    [
      'scores for another vocabulary',
      {
        metadata: tinyGguf.metadata.map(([key, value]) => [key, key.endsWith('scores') ? numbers('f32', [1]) : value]),
      },
      /1 entries for a vocabulary of 96 tokens/,
    ],
    [
      'parts of a split model',
      { metadata: [...tinyGguf.metadata, ['split.count', u32(3)]] },
      /split over 3 files: their names must end like -00001-of-00003.gguf/,
    ],
    [
      'a mixture of experts',
      { metadata: [...tinyGguf.metadata, ['llama.expert_count', u32(8)]] },
      /mixtures of experts are not supported/,
    ],
  ])('%s', (_, spec, message) => {
    const problem = ggufProblem(spec);
    expect(problem.message).toMatch(message);
    expect(problem.message).not.toContain('\n');
    expect(problem.file).toContain('hostile.gguf');
  });

  test('a name with line breaks is shown on one line', () => {
    const problem = ggufProblem({
      tensors: changed(0, { name: `a\nERROR \u001b[31m${'x'.repeat(5000)}`, shape: [1, 33] }),
    });
    expect(problem.message).toMatch(/^[^\p{Cc}]{1,400}$/u);
  });

  test('text that is not UTF-8, as key, value and token', () => {
    const bad = { type: 'string', value: Uint8Array.of(0x61, 0xff, 0x62) } as const;
    expect(ggufProblem({ metadata: [...tinyGguf.metadata, ['x', bad]] }).message).toMatch(
      /a metadata string is not valid UTF-8 \(offset \d+\)/,
    );
    const tokens = { type: 'array', itemType: 'string', items: [text('a'), bad, text('c')] } as const;
    const problem = ggufProblem({
      metadata: tinyGguf.metadata.map(([key, value]) => [key, key.endsWith('tokens') ? tokens : value]),
    });
    expect(problem.message).toMatch(/string 1 is not valid UTF-8 \(key "tokenizer\.ggml\.tokens", offset \d+\)/);
  });

  test('a file that shrinks while it is open', () => {
    const path = folder.write('shrinking.gguf', writeGguf(tinyGguf));
    const files = openModel(path);
    const last = [...files.tensors()].at(-1);
    writeFileSync(path, 'gone');
    expect(() => last && files.read(last, 0, last.byteLength)).toThrow(/the file ends early/);
    expect(() => files.tokenizer).toThrow(ModelFileError);
    files.close();
  });
});

describe('invalid safetensors files', () => {
  function problem(bytes: Uint8Array): ModelFileError {
    writeFileSync(join(directory, 'model.safetensors'), bytes);
    return problemOf(directory);
  }
  const entry = (shape: unknown, begin: unknown, end: unknown, dtype: unknown = 'F32') => ({
    dtype,
    shape,
    data_offsets: [begin, end],
  });
  const header = (tensors: Record<string, unknown>): Uint8Array =>
    rawSafetensors(JSON.stringify(tensors), new Uint8Array(64));

  test('a header that claims 10^12 bytes', () => {
    const bytes = new Uint8Array(64);
    new DataView(bytes.buffer).setBigUint64(0, 10n ** 12n, true);
    expect(problem(bytes).message).toMatch(
      /the header claims 1000000000000 bytes where the file has 56 left .* \(offset 0\)$/,
    );
  });

  test.each<[string, Uint8Array, RegExp]>([
    ['too short', new Uint8Array(7), /the file has 7 bytes/],
    ['not UTF-8', rawSafetensorsBytes(Uint8Array.of(0x22, 0xff, 0x22)), /the header is not valid UTF-8 \(offset 8\)/],
    ['not JSON', rawSafetensors('{"a":'), /invalid JSON: .*\(offset 8\)/],
    ['not an object', rawSafetensors('[1]'), /the header is not a JSON object/],
    [
      'out of the file',
      header({ a: entry([17], 0, 68) }),
      /its 68 bytes end past the file's \d+ bytes \(tensor "a", offset \d+\)/,
    ],
    ['an offset of 10^12', header({ a: entry([1], 1e12, 1e12 + 4) }), /its 4 bytes end past/],
    ['an offset of 10^300', header({ a: entry([1], 0, 1e300) }), /its data_offsets are not two integers/],
    ['descending offsets', header({ a: entry([1], 8, 4) }), /not two ascending integers/],
    ['a wrong byte count', header({ a: entry([3], 0, 8) }), /it has 8 bytes where shape \[3\] in F32 takes 12/],
    ['an overflowing shape', header({ a: entry([2 ** 40, 2 ** 40, 0], 0, 0) }), /overflows/],
    ['a negative size', header({ a: entry([-1], 0, 4) }), /its shape is not a list/],
    ['a null size', header({ a: entry([null], 0, 4) }), /its shape is not a list/],
    ['overlap', header({ a: entry([2], 0, 8), b: entry([2], 4, 12) }), /it overlaps tensor "a"/],
    ['a missing type', header({ a: entry([2], 0, 8, null) }), /its dtype is missing/],
    [
      'the same name twice',
      rawSafetensors(
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        new Uint8Array(8),
      ),
      /two tensors have this name \(tensor "a"/,
    ],
  ])('%s', (_, bytes, message) => {
    expect(problem(bytes).message).toMatch(message);
  });

  test('a very long name does not exhaust the parser', () => {
    expect(problem(header({ ['x'.repeat(8_000_000)]: entry([1], 4, 0) })).message.length).toBeLessThan(1000);
  });
});

function rawSafetensorsBytes(header: Uint8Array): Uint8Array {
  const length = new Uint8Array(8);
  length[0] = header.byteLength;
  return new Uint8Array(Buffer.concat([length, header]));
}

describe('files with random changes are read or refused', () => {
  /** Overwritten bytes, a removed section, a truncated end: several at once. */
  const edits = fc.array(
    fc.oneof(
      fc.record({
        kind: fc.constant('set' as const),
        at: fc.nat(),
        bytes: fc.uint8Array({ minLength: 1, maxLength: 9 }),
      }),
      fc.record({
        kind: fc.constant('big' as const),
        at: fc.nat(),
        bytes: fc.constant(Uint8Array.of(0, 0, 0, 0, 0, 255, 255, 127)),
      }),
      fc.record({
        kind: fc.constant('cut' as const),
        at: fc.nat(),
        bytes: fc.uint8Array({ minLength: 1, maxLength: 40 }),
      }),
      fc.record({ kind: fc.constant('end' as const), at: fc.nat(), bytes: fc.constant(new Uint8Array(0)) }),
    ),
    { minLength: 1, maxLength: 4 },
  );

  function edit(
    original: Uint8Array,
    changes: readonly { kind: string; at: number; bytes: Uint8Array }[],
    span: number,
  ): Uint8Array {
    let bytes = Uint8Array.from(original);
    for (const { kind, at, bytes: patch } of changes) {
      // Most changes hit the header, where most checks are.
      const place = at % Math.max(1, Math.min(span, bytes.byteLength));
      if (kind === 'end') bytes = bytes.slice(0, at % (bytes.byteLength + 1));
      else if (kind === 'cut')
        bytes = new Uint8Array(Buffer.concat([bytes.subarray(0, place), bytes.subarray(place + patch.byteLength)]));
      else bytes.set(patch.subarray(0, bytes.byteLength - place), place);
    }
    return bytes;
  }

  function check(path: string): void {
    const before = process.memoryUsage();
    try {
      useAll(path);
    } catch (error) {
      if (!(error instanceof ModelFileError)) throw error;
      expect(error.message).not.toContain('\n');
    }
    const after = process.memoryUsage();
    expect(after.arrayBuffers - before.arrayBuffers).toBeLessThan(1 << 24);
  }

  test('GGUF', () => {
    const original = writeGguf(tinyGguf);
    fc.assert(
      fc.property(edits, (changes) => check(folder.write('mutated.gguf', edit(original, changes, 5000)))),
      { numRuns: 600 },
    );
  });

  test('safetensors', () => {
    const tensors = ['a', 'b', 'c'].map((name) => ({ name, dtype: 'BF16', shape: [4, 8], bytes: new Uint8Array(64) }));
    const original = writeSafetensors(tensors);
    fc.assert(
      fc.property(edits, (changes) => {
        writeFileSync(join(directory, 'model.safetensors'), edit(original, changes, 300));
        check(directory);
      }),
      { numRuns: 300 },
    );
  });

  test('config.json', () => {
    writeFileSync(join(directory, 'model.safetensors'), writeSafetensors([]));
    const strange = fc.oneof(
      fc.jsonValue(),
      fc.double(),
      fc.bigInt().map(Number),
      fc.constantFrom(0, -1, 1e300, '', 'yarn', {}, []),
    );
    const config = {
      ...configJson(tinySpec),
      rope_scaling: null,
      rope_parameters: null,
      layer_types: null,
      sliding_window: null,
    };
    fc.assert(
      fc.property(fc.dictionary(fc.constantFrom(...Object.keys(config)), strange, { maxKeys: 4 }), (changes) => {
        writeFileSync(join(directory, 'config.json'), JSON.stringify({ ...config, ...changes }));
        check(directory);
      }),
      { numRuns: 300 },
    );
  });
});
