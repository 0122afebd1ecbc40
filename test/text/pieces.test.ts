// SentencePiece-style tokenizers (Llama 2, Gemma, Phi-3) against ids recorded from llama.cpp
// (tools/peer-llama/compare-pieces.mjs).

import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { expect, test } from 'vitest';
import { createGgufTokenizer } from '../../src/text/vocabulary/gguf-tokenizer.ts';
import { pieceVocabularies } from '../../tools/peer-llama/piece-vocabulary.mjs';

/** A text, its ids, and its ids with special tokens added and parsed. */
type Line = readonly [text: string, plain: string, marked: string];

const recorded = resolve(import.meta.dirname, '../data/tokens/pieces.json');
const cases: Readonly<Record<string, readonly Line[]>> = JSON.parse(readFileSync(recorded, 'utf8'));

test.each(Object.entries(pieceVocabularies()))('%s', (name, vocabulary) => {
  const tokenizer = createGgufTokenizer({ model: 'llama', ...vocabulary });
  const lines = cases[name] ?? [];
  expect(lines.length).toBeGreaterThan(100);
  for (const [text, plain, marked] of lines) {
    expect(tokenizer.encode(text, { addSpecial: false, parseSpecial: false }).join(' '), JSON.stringify(text)).toBe(
      plain,
    );
    expect(tokenizer.encode(text).join(' '), JSON.stringify(text)).toBe(marked);
  }
});
