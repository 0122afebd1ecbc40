// Tokenizers from GGUF metadata: properties, special tokens, extreme texts and errors.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Detokenizer, decodeTokens } from '../../src/text/detokenizer.ts';
import type { Tokenizer } from '../../src/text/tokenizer.ts';
import { toWellFormed } from '../../src/text/utf8.ts';
import { createGgufTokenizer } from '../../src/text/vocabulary/gguf-tokenizer.ts';
import { type GgufTokenizerData, tokenType } from '../../src/text/vocabulary/gguf-tokenizer-data.ts';
import { preTokenizer, splitPieces } from '../../src/text/vocabulary/pre-tokenizers.ts';
import { anyText } from './arbitraries.ts';
import { embeddedModel, openText, openVocabulary } from './models.ts';
import { naiveSentencePiece, sentencePieceVocabulary } from './sentence-piece-oracle.ts';

const tiny = openText(embeddedModel).tokenizer;
const plain = { addSpecial: false, parseSpecial: false };

function pieceByPiece(tokenizer: Tokenizer, ids: readonly number[], skipSpecial: boolean): string {
  const detokenizer = new Detokenizer(tokenizer, { skipSpecial });
  return ids.map((id) => detokenizer.push(id)).join('') + detokenizer.flush();
}

describe('byte-level BPE (the embedded model)', () => {
  test('decoding restores any encoded text', () => {
    fc.assert(
      fc.property(anyText, (text) => {
        const ids = tiny.encode(text, plain);
        expect(ids.every((id) => id >= 0 && id < tiny.vocabSize && !tiny.isSpecial(id))).toBe(true);
        expect(decodeTokens(tiny, ids)).toBe(toWellFormed(text));
      }),
      { numRuns: 300 },
    );
  });

  test('special tokens in the text, and around it', () => {
    expect(tiny.encode('')).toEqual([0]);
    expect(tiny.encode('<|user|><|end|>')).toEqual([0, 4, 6]);
    expect(tiny.encode('<|user|>', plain)).not.toContain(4);
    expect([tiny.bosId, [...tiny.eosIds], [...tiny.specialIds]]).toEqual([0, [1, 6], [0, 1, 2, 3, 4, 5, 6]]);
    const ids = tiny.encode('<|user|>Hi<|end|>', { addSpecial: false });
    expect(decodeTokens(tiny, ids)).toBe('Hi');
    expect(decodeTokens(tiny, ids, { skipSpecial: false })).toBe('<|user|>Hi<|end|>');
  });

  test('any ids decode to the same text at once and one by one', () => {
    const strange = fc.oneof(fc.nat(tiny.vocabSize - 1), fc.integer({ min: -2, max: tiny.vocabSize + 2 }));
    fc.assert(
      fc.property(fc.array(strange), fc.boolean(), (ids, skipSpecial) => {
        const bytes = ids.flatMap((id) => [...(skipSpecial ? tiny.decodeBytes(id) : tiny.tokenBytes(id))]);
        const whole = new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(bytes));
        expect(pieceByPiece(tiny, ids, skipSpecial)).toBe(whole);
      }),
    );
  });

  test('no streamed piece splits a character', () => {
    fc.assert(
      fc.property(anyText, (text) => {
        const detokenizer = new Detokenizer(tiny);
        for (const id of tiny.encode(text, plain)) {
          const piece = detokenizer.push(id);
          expect(piece).toBe(toWellFormed(piece));
        }
        expect(detokenizer.flush()).toBe('');
      }),
    );
  });

  test.each(['gpt-2', 'smollm', 'llama-bpe', 'qwen2', 'default'])(
    '%s: the concatenated pieces are the text',
    (name) => {
      fc.assert(
        fc.property(anyText, (text) => {
          const pieces = splitPieces(text, preTokenizer(name).passes);
          expect(pieces.join('')).toBe(text);
          expect(pieces).not.toContain('');
        }),
      );
    },
  );

  test('each pre-tokenizer splits by its row of the table', () => {
    const cutBy = (name: string, text: string) => splitPieces(text, preTokenizer(name).passes);
    expect(cutBy('gpt-2', "I'll  go 1234\n\n x!")).toEqual(['I', "'ll", ' ', ' go', ' 1234', '\n\n', ' x', '!']);
    expect(cutBy('smollm', 'a  12 b')).toEqual(['a', '  ', '1', '2', ' b']);
    expect(cutBy('llama-bpe', "I'LL go12345!\n\n x")).toEqual(['I', "'LL", ' go', '123', '45', '!\n\n', ' x']);
    expect(cutBy('qwen2', 'go123 \n x')).toEqual(['go', '1', '2', '3', ' \n', ' x']);
    expect(cutBy('default', 'v1.2345$ x')).toEqual(['v', '1', '.', '234', '5', '$', ' x']);
  });
});

describe('SentencePiece style', () => {
  test('ids equal those of a naive merge', () => {
    fc.assert(
      fc.property(sentencePieceVocabulary, (data) => {
        const tokenizer = createGgufTokenizer(data);
        const unit = fc.constantFrom('a', 'b', 'c', ' ', 'é', '\u2581', '😀');
        fc.assert(
          fc.property(fc.string({ unit, maxLength: 40 }), (text) => {
            expect(tokenizer.encode(text, plain)).toEqual(naiveSentencePiece(data, text));
          }),
          { numRuns: 20 },
        );
      }),
      { numRuns: 100 },
    );
  });

  const data: GgufTokenizerData = {
    model: 'llama',
    tokens: [
      '<unk>',
      '<s>',
      '</s>',
      ...Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`),
      '\u2581',
      'a',
      '\u2581a',
      '<tool>',
    ],
    scores: [0, 0, 0, ...new Array<number>(256).fill(0), -1, -2, -3, 0],
    tokenTypes: [2, 3, 3, ...new Array<number>(256).fill(tokenType.byte), 1, 1, 1, tokenType.userDefined],
    bosId: 1,
    eosId: 2,
  };
  const tokenizer = createGgufTokenizer(data);

  test('space prefix, bos and eos', () => {
    expect(tokenizer.encode('a')).toEqual([1, 261]);
    expect(createGgufTokenizer({ ...data, addBos: false, addEos: true }).encode('a')).toEqual([261, 2]);
    expect(createGgufTokenizer({ ...data, addSpacePrefix: false }).encode('a')).toEqual([1, 260]);
    expect(tokenizer.encode('</s>a')).toEqual([1, 2, 261]);
    expect(tokenizer.encode('a<tool>a', plain)).toEqual([261, 262, 261]);
  });

  test('the space prefix is added only at the start', () => {
    fc.assert(
      fc.property(
        anyText.filter((text) => !/\u2581|<tool>/.test(text)),
        (text) => {
          const ids = tokenizer.encode(text, plain);
          expect(decodeTokens(tokenizer, ids)).toBe(toWellFormed(text));
          expect(decodeTokens(tokenizer, [1, ...ids])).toBe(toWellFormed(text));
          const continued = text === '' ? '' : ` ${toWellFormed(text)}`;
          expect(decodeTokens(tokenizer, ids, { atStart: false })).toBe(continued);
        },
      ),
    );
  });
});

describe('extremes', () => {
  const spm = createGgufTokenizer({
    model: 'llama',
    tokens: ['a', 'aa', 'aaaa', '\u2581', '\u2581\u2581', 'b'],
    scores: [-9, -1, -2, -9, -3, -9],
  });

  // A quadratic algorithm would take minutes.
  test.each([
    ['one letter', 'a'],
    ['spaces', ' '],
    ['newlines', '\n'],
    ['digits', '7'],
    ['spaces and a letter', `${' '.repeat(999)}a`],
    ['emoji', '😀'],
    ['punctuation', '!'],
    ['broken surrogates', '\ud83d'],
  ])('a long run of %s', (_, unit) => {
    const text = unit.repeat(Math.ceil(200_000 / unit.length));
    expect(decodeTokens(tiny, tiny.encode(text, plain))).toBe(toWellFormed(text));
    expect(spm.encode(text).length).toBeLessThanOrEqual(text.length + 1);
  });

  test('every pre-tokenizer handles them', () => {
    for (const name of ['gpt-2', 'llama-bpe', 'qwen2', 'default']) {
      const other = createGgufTokenizer({ ...openVocabulary(embeddedModel), pre: name });
      for (const unit of ['a', ' ', '\n', ' \n', '7', '! ', "'"]) {
        const text = unit.repeat(50_000 / unit.length);
        expect(decodeTokens(other, other.encode(text, plain))).toBe(text);
      }
    }
  });
});

describe('limits of the regular expression engine', () => {
  // The stack limit depends on the regular expression engine: the text is encoded, or refused with an error.
  test('a word of millions of characters', () => {
    const text = '漢'.repeat(9_000_000);
    let outcome: unknown;
    try {
      outcome = decodeTokens(tiny, tiny.encode(text, plain)) === text;
    } catch (error) {
      outcome = String(error);
    }
    const refusal = 'Error: Cannot tokenize text: a word in it is too long: the text has 9000000 characters';
    expect([true, refusal]).toContain(outcome);
  });
});

describe('invalid metadata', () => {
  const data: GgufTokenizerData = { model: 'gpt2', tokens: ['a', 'b'], merges: [] };
  test.each<[string, Partial<GgufTokenizerData>, string]>([
    ['model', { model: 'rwkv' }, "unknown model: 'rwkv', known are bert, gpt2, llama"],
    ['pre-tokenizer', { pre: 'klingon' }, "unknown pre-tokenizer: 'klingon', known are default, gpt-2, "],
    ['merges', { merges: undefined }, 'a gpt2 vocabulary needs merges: none given'],
    ['merge', { merges: ['ab'] }, "merge 0 is not a pair: 'ab'"],
    ['scores', { model: 'llama', scores: [1] }, 'a llama vocabulary needs a score for each token: 1 scores, 2 tokens'],
    ['types', { tokenTypes: [1] }, 'token types do not fit: 1 types, 2 tokens'],
    ['ids', { bosId: 2 }, 'bosId is outside the vocabulary: 2, 2 tokens'],
  ])('%s', (_, part, message) => {
    expect(() => createGgufTokenizer({ ...data, ...part })).toThrow(`Cannot build tokenizer: ${message}`);
  });

  test('bytes that the vocabulary lacks are dropped without an error', () => {
    const poor = createGgufTokenizer({ model: 'gpt2', tokens: ['a', 'b'], merges: ['a c', 'a b'] });
    expect(poor.encode('acb ab')).toEqual([0, 1, 0, 1]);
  });
});
