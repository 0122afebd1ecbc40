// tokenizer.json of each family against ids and texts recorded from Hugging Face's Python library
// (tools/record-text/families.py).

import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, test } from 'vitest';
import { decodeTokens } from '../../src/text/detokenizer.ts';
import { createModelText } from '../../src/text/model-text.ts';
import { StopMatcher } from '../../src/text/stop-matcher.ts';
import { indentedCode } from './arbitraries.ts';

interface Family {
  readonly name: string;
  readonly model: string;
  readonly json: object;
  /** Index of the text, its ids, and the decoded text where it differs. */
  readonly cases: readonly (readonly [text: number, ids: string, decoded?: string])[];
}

interface Recorded {
  readonly texts: readonly string[];
  readonly models: Readonly<Record<string, object>>;
  readonly families: readonly Family[];
}

const path = resolve(import.meta.dirname, '../data/tokens/hugging-face.json');
const { texts, models, families }: Recorded = JSON.parse(readFileSync(path, 'utf8'));

function tokenizerOf({ json, model }: Family) {
  const tokenizerJson = JSON.stringify({ ...json, model: models[model] });
  return createModelText({ kind: 'huggingface', tokenizerJson }).tokenizer;
}

describe('ids and texts equal the recorded ones, and decoding restores indented code', () => {
  test.each(families.map((family) => [family.name, family] as const))('%s', (_, family) => {
    const tokenizer = tokenizerOf(family);
    expect(family.cases).toHaveLength(texts.length);
    for (const [index, recorded, decoded] of family.cases) {
      const text = texts[index] as string;
      expect(tokenizer.encode(text, { addSpecial: false }).join(' '), JSON.stringify(text)).toBe(recorded);
      const ids = recorded.split(' ').map(Number);
      expect(decodeTokens(tokenizer, ids), JSON.stringify(text)).toBe(decoded ?? text);
    }
    for (const code of indentedCode) {
      expect(decodeTokens(tokenizer, tokenizer.encode(code, { addSpecial: false }))).toBe(code);
    }
  });
});

test('a stop string of spaces ends an output in which the spaces are one added token of Gemma', () => {
  const tokenizer = tokenizerOf(families[0] as Family);
  const ids = tokenizer.encode('a\n    b', { addSpecial: false });
  expect(ids.some((id) => Buffer.from(tokenizer.tokenBytes(id)).toString() === '    ')).toBe(true);
  expect(new StopMatcher(['\n  ']).push(decodeTokens(tokenizer, ids))).toEqual({ emit: 'a', stopped: '\n  ' });
});

test('an added token of a byte-level tokenizer is text, also where its letters are in the byte alphabet', () => {
  const family = families.find(({ name }) => name === 'gpt-2') as Family;
  const added = { content: 'für', id: 1000, special: false, normalized: false };
  const tokenizer = tokenizerOf({ ...family, json: { ...family.json, added_tokens: [added] } });
  expect(decodeTokens(tokenizer, tokenizer.encode('x für y', { addSpecial: false }))).toBe('x für y');
});
