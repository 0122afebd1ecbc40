// tokenizer.json by the library: the same ids as the GGUF form of a tokenizer, and the library's decoders.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decodeTokens } from '../../src/text/detokenizer.ts';
import { createModelText } from '../../src/text/model-text.ts';
import { toWellFormed } from '../../src/text/utf8.ts';
import { anyText } from './arbitraries.ts';
import { embeddedModel, hasShared, openText, openVocabulary, sharedModels } from './models.ts';

// The embedded model's vocabulary as tokenizer.json, configured as in its training script.
function embeddedAsJson(): string {
  const { tokens, merges = [], tokenTypes } = openVocabulary(embeddedModel);
  const special = tokens.flatMap((content, id) =>
    tokenTypes?.[id] === 3 ? [{ id, content, special: true, normalized: false }] : [],
  );
  const bos = { id: '<|bos|>', ids: [0], tokens: ['<|bos|>'] };
  return JSON.stringify({
    added_tokens: special,
    normalizer: null,
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Digits', individual_digits: true },
        { type: 'ByteLevel', add_prefix_space: false, use_regex: true },
      ],
    },
    post_processor: {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<|bos|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [],
      special_tokens: { '<|bos|>': bos },
    },
    decoder: { type: 'ByteLevel' },
    model: { type: 'BPE', vocab: Object.fromEntries(tokens.map((token, id) => [token, id])), merges },
  });
}

const config = { bos_token: '<|bos|>', eos_token: { content: '<|eos|>' } };
const library = createModelText({ kind: 'huggingface', tokenizerJson: embeddedAsJson(), tokenizerConfig: config });
const ours = openText(embeddedModel);

describe('tokenizer.json', () => {
  test('gives the same ids as the GGUF form', () => {
    fc.assert(
      fc.property(anyText, fc.boolean(), fc.boolean(), (text, addSpecial, parseSpecial) => {
        const options = { addSpecial, parseSpecial };
        expect(library.tokenizer.encode(text, options)).toEqual(ours.tokenizer.encode(text, options));
      }),
      { numRuns: 300 },
    );
    const marked = '<|user|>Remember: the code for fox is 1234.<|end|><|assistant|>';
    for (const parseSpecial of [true, false]) {
      expect(library.tokenizer.encode(marked, { parseSpecial })).toEqual(
        ours.tokenizer.encode(marked, { parseSpecial }),
      );
    }
  });

  test('gives the same bytes, end tokens and spellings as the GGUF form', () => {
    for (let id = -1; id <= ours.tokenizer.vocabSize; id++) {
      expect(library.tokenizer.tokenBytes(id)).toEqual(ours.tokenizer.tokenBytes(id));
      expect(library.tokenizer.decodeBytes(id)).toEqual(ours.tokenizer.decodeBytes(id));
    }
    expect(library.tokenizer.vocabSize).toBe(ours.tokenizer.vocabSize);
    expect(library.tokenizer.specialIds).toEqual(ours.tokenizer.specialIds);
    expect(library.tokenizer.eosIds).toEqual([1]);
    expect([library.bosToken, library.eosToken]).toEqual([ours.bosToken, ours.eosToken]);
  });

  test.skipIf(!hasShared)('of the embedded model as trained (needs ../shared/models)', () => {
    const trained = openText(`${sharedModels}/kvasir-tiny`);
    fc.assert(
      fc.property(anyText, (text) => {
        expect(trained.tokenizer.encode(text)).toEqual(ours.tokenizer.encode(text));
      }),
    );
    const messages = [{ role: 'user', content: ' Hello! ' }];
    const { bosToken } = trained;
    const prompt = trained.chatTemplate?.render({ messages, bosToken });
    expect(prompt).toBe('<|bos|><|user|>Hello!<|end|><|assistant|>');
    expect(ours.chatTemplate?.render({ messages, bosToken: ours.bosToken })).toBe(prompt);
  });

  test('encodes a long run of one letter', () => {
    const text = 'a'.repeat(100_000);
    expect(library.tokenizer.encode(text)).toEqual(ours.tokenizer.encode(text));
  });
});

test('add_bos_token and add_eos_token of tokenizer_config.json take precedence over the post-processor', () => {
  const idsWith = (more: object): number[] => {
    const tokenizerConfig = { ...config, ...more };
    return createModelText({ kind: 'huggingface', tokenizerJson: embeddedAsJson(), tokenizerConfig }).tokenizer.encode(
      'a',
    );
  };
  const [bos, letter] = idsWith({});
  expect([bos, letter]).toEqual([0, ...ours.tokenizer.encode('a', { addSpecial: false })]);
  expect(idsWith({ add_bos_token: false, add_eos_token: false })).toEqual([letter]);
  expect(idsWith({ add_bos_token: true, add_eos_token: true })).toEqual([0, letter, 1]);
});

describe('tokenizer.json of SentencePiece style', () => {
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const tokens = ['<unk>', '<s>', '</s>', ...bytes, '\u2581', 'a', 'b', '\u2581a', 'ab', '\u2581ab'];
  const json = {
    added_tokens: [0, 1, 2].map((id) => ({ id, content: tokens[id], special: true, normalized: false })),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '\u2581' },
        { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '\u2581' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      byte_fallback: true,
      unk_token: '<unk>',
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges: ['a b', '\u2581 a', '\u2581 ab'],
    },
  };
  const { tokenizer } = createModelText({ kind: 'huggingface', tokenizerJson: JSON.stringify(json) });

  test('decoding restores any encoded text', () => {
    expect(tokenizer.encode('ab a')).toEqual([264, 262]);
    expect(tokenizer.addsSpacePrefix).toBe(true);
    fc.assert(
      fc.property(
        anyText.filter((text) => !text.includes('\u2581')),
        (text) => {
          expect(decodeTokens(tokenizer, tokenizer.encode(text, { parseSpecial: false }))).toBe(toWellFormed(text));
        },
      ),
    );
  });
});

describe('invalid files', () => {
  test.each([
    ['not JSON', '{', /^Cannot build tokenizer: tokenizer.json is not JSON: /],
    ['no object', '[]', /^Cannot build tokenizer: tokenizer.json is not an object/],
    ['empty', '{}', /^Cannot build tokenizer: tokenizer.json: /],
    [
      'no model',
      '{"model":{},"decoder":null,"post_processor":null,"pre_tokenizer":null,"normalizer":null,"added_tokens":[]}',
      /^Cannot build tokenizer: tokenizer.json: /,
    ],
    [
      'bad token',
      '{"added_tokens":[{"id":"x"}]}',
      /^Cannot build tokenizer: tokenizer.json: added_tokens\[0\] lacks id or content/,
    ],
    [
      'an id that no vocabulary reaches',
      '{"added_tokens":[{"id":2147483647,"content":"<|eos|>"}]}',
      /^Cannot build tokenizer: tokenizer.json: token '<\|eos\|>' has the id 2147483647/,
    ],
    [
      'an id that is no count',
      '{"model":{"type":"BPE","vocab":{"a":0,"b":-1}}}',
      /^Cannot build tokenizer: tokenizer.json: token 'b' has the id -1/,
    ],
    [
      'an id of a language that no vocabulary reaches',
      '{"model":{"vocab":{"en":{"a":1e15}}}}',
      /^Cannot build tokenizer: tokenizer.json: token 'a' has the id 1000000000000000/,
    ],
  ])('%s', (_, tokenizerJson, message) => {
    expect(() => createModelText({ kind: 'huggingface', tokenizerJson })).toThrow(message);
  });
});
