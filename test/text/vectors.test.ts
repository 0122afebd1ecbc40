// GGUF tokenizers against recorded ids.

import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { decodeTokens } from '../../src/text/detokenizer.ts';
import type { Tokenizer } from '../../src/text/tokenizer.ts';
import { indentedCode } from './arbitraries.ts';
import { hasShared, openText, sharedModels } from './models.ts';

/** A text with its expected ids, without special tokens. */
interface Vector {
  readonly text: string;
  readonly ids: readonly number[];
}

function readVectors(stem: string): Vector[] {
  const texts = readFileSync(`${stem}.inp`, 'utf8').split('\n__ggml_vocab_test__\n');
  const lines = readFileSync(`${stem}.out`, 'utf8').split('\n');
  // Every text ends with the separator, so the last part is empty.
  expect(texts.pop()).toBe('');
  return texts.map((text, i) => ({ text, ids: (lines[i] ?? '').split(' ').filter(Boolean).map(Number) }));
}

function restoresIndentedCode(tokenizer: Tokenizer): void {
  for (const code of indentedCode) {
    expect(decodeTokens(tokenizer, tokenizer.encode(code, { addSpecial: false, parseSpecial: false }))).toBe(code);
  }
}

describe.skipIf(!hasShared)('recorded ids (needs ../shared/models)', () => {
  test.each(['gpt-2', 'llama-bpe', 'llama-spm'])('%s vocabulary', (name) => {
    const stem = `${sharedModels}/vocabs/ggml-vocab-${name}.gguf`;
    const { tokenizer } = openText(stem);
    const vectors = readVectors(stem);
    expect(vectors.length).toBe(46);
    for (const { text, ids } of vectors) {
      expect(tokenizer.encode(text, { addSpecial: false, parseSpecial: false }), JSON.stringify(text)).toEqual(ids);
      expect(decodeTokens(tokenizer, ids)).toBe(text);
    }
    restoresIndentedCode(tokenizer);
  });

  test('SmolLM2', () => {
    const folder = `${sharedModels}/SmolLM2-135M-Instruct`;
    const { tokenizer } = openText(`${folder}/SmolLM2-135M-Instruct.Q4_1.gguf`);
    const vectors: Vector[] = JSON.parse(readFileSync(`${folder}/tokenizer-vectors.json`, 'utf8'));
    expect(vectors.length).toBe(57);
    expect([tokenizer.bosId, ...tokenizer.eosIds]).toEqual([1, 2, 0]);
    for (const { text, ids } of vectors) {
      expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(ids);
    }
    restoresIndentedCode(tokenizer);
  });

  test('SmolLM2 encodes the prompts of its recorded outputs', () => {
    const folder = `${sharedModels}/SmolLM2-135M-Instruct`;
    const { tokenizer } = openText(`${folder}/SmolLM2-135M-Instruct.Q4_1.gguf`);
    const golden: { cases: { text: string; prompt: number[] }[] } = JSON.parse(
      readFileSync(`${folder}/golden.json`, 'utf8'),
    );
    expect(golden.cases.length).toBeGreaterThan(0);
    for (const { text, prompt } of golden.cases) expect(tokenizer.encode(text)).toEqual(prompt);
  });
});
