// Every pre-tokenizer against ids recorded from llama.cpp, with a vocabulary that exposes each split
// (tools/peer-llama/compare-tokens.mjs).

import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { expect, test } from 'vitest';
import { createGgufTokenizer } from '../../src/text/vocabulary/gguf-tokenizer.ts';
import { createPreTokenizer } from '../../src/text/vocabulary/hugging-face-pre-tokenizer.ts';
import { preTokenizer, preTokenizerNames, splitPieces } from '../../src/text/vocabulary/pre-tokenizers.ts';
import { pairVocabulary } from '../../tools/peer-llama/pair-vocabulary.mjs';

interface Case {
  readonly text: string;
  /** Pre-tokenizer names with equal ids, to those ids. */
  readonly ids: Readonly<Record<string, string>>;
}

const recorded = resolve(import.meta.dirname, '../data/tokens/pre-tokenizers.json');
const cases: readonly Case[] = JSON.parse(readFileSync(recorded, 'utf8'));
const vocabulary = pairVocabulary();

test('the recorded ids differ between pre-tokenizers', () => {
  expect(cases.length).toBeGreaterThan(80);
  for (const { ids } of cases)
    expect(Object.keys(ids).join(' ').split(' ').sort()).toEqual([...preTokenizerNames].sort());
  const columns = preTokenizerNames.map((name) => cases.map(({ ids }) => idsOf(ids, name)).join('\n'));
  expect(new Set(columns).size).toBe(11);
});

// Names that share a row of the table.
const rows = new Map<unknown, [string, ...string[]]>();
for (const name of preTokenizerNames) {
  const row = preTokenizer(name);
  rows.set(row, [...(rows.get(row) ?? []), name] as [string, ...string[]]);
}

test.each([...rows.values()])('%s', (pre, ...others) => {
  const tokenizer = createGgufTokenizer({ model: 'gpt2', pre, ...vocabulary });
  for (const { text, ids } of cases) {
    const got = tokenizer.encode(text, { addSpecial: false, parseSpecial: false }).join(' ');
    for (const name of [pre, ...others]) expect(got, `${name} ${JSON.stringify(text)}`).toBe(idsOf(ids, name));
  }
});

test.each([...rows.values()])('half a megabyte of one character is split in linear time: %s', (pre) => {
  // Each ends a run of the others; a quadratic pattern takes longer than the time limit, more than 7 minutes.
  for (const unit of [' ', 'A', '!', '7']) {
    const text = `${unit.repeat(2 ** 19)}漢`;
    expect(splitPieces(text, preTokenizer(pre).passes).join('')).toBe(text);
  }
});

test('a run at the end of a text is split off in linear time by a tokenizer.json too', () => {
  const split = createPreTokenizer({ type: 'Split', pattern: { Regex: '\\s+$' }, behavior: 'Isolated' });
  expect(split?.(' a  b \u3000')).toEqual([' a  b', ' \u3000']);
  const text = `${' '.repeat(2 ** 20)}漢`;
  expect(split?.(text)).toEqual([text]);
});

function idsOf(ids: Case['ids'], pre: string): string | undefined {
  return Object.entries(ids).find(([names]) => names.split(' ').includes(pre))?.[1];
}
