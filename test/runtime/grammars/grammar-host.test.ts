// Grammars compiled by XGrammar for a small vocabulary: masks, faults with their places, and bounds of memory.
import { expect, test } from 'vitest';
import type { GrammarKind } from '../../../src/core/protocol/grammar.ts';
import { GrammarHost, type GrammarVocabulary, grammarLimits } from '../../../src/runtime/grammars/grammar-host.ts';
import { createMaskMemory, maskStates } from '../../../src/runtime/grammars/grammar-protocol.ts';
import { createXgrammar } from '../../../src/runtime/grammars/xgrammar.ts';

const words = ['{"', '":', 'true', 'ab', 'ä'];
const encoder = new TextEncoder();
const eos = 256 + words.length;
/** Bytes, some words, and an end-of-sequence token; the logits have more columns. */
const vocabulary: GrammarVocabulary = {
  size: 290,
  bytesOf: (id) => (id < 256 ? Uint8Array.of(id) : encoder.encode(words[id - 256] ?? '')),
  eosIds: [eos],
};

function hostOf(limits = grammarLimits) {
  const memory = createMaskMemory(8, Math.ceil(vocabulary.size / 32));
  const host = new GrammarHost(vocabulary, memory, limits);
  let number = 0;
  let batch = 0;
  const compile = async (kind: GrammarKind, text: string) => {
    const answer = await host.receive({ kind: 'compile', number: ++number, grammar: { kind, text }, keeps: true });
    return answer?.kind === 'compiled' ? answer.fault : undefined;
  };
  /** What may follow, spelled; the state of the row if it has no mask. */
  const next = async (from: number, tokens: readonly number[], grammar = number, request = 'r') => {
    const row = { request, grammar, from, tokens: Int32Array.from(tokens) };
    await host.receive({ kind: 'masks', batch: ++batch, rows: [row] });
    expect(memory.control[0]).toBe(batch);
    if (memory.control[1] !== maskStates.ready) return memory.control[1];
    const ids = Array.from({ length: vocabulary.size }, (_, id) => id);
    const allowed = ids.filter((id) => (((memory.masks[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1);
    return allowed.map((id) => (id === eos ? 'end' : new TextDecoder().decode(vocabulary.bytesOf(id)))).join(' ');
  };
  return { host, compile, next };
}

const at = (text: string): number[] => [...encoder.encode(text)];

test('masks follow the output, and the end of the grammar allows the end of the sequence alone', async () => {
  const { host, compile, next } = hostOf();
  expect(await compile('ebnf', 'root ::= "yes" | "nö"')).toBeUndefined();
  expect(await next(0, [])).toBe('n y');
  expect(await next(0, at('y'))).toBe('e');
  expect(await next(1, at('es'))).toBe('end');
  expect(await next(3, [])).toBe('end');
  expect(await next(0, [...at('yes'), eos])).toBe('');
  expect(await next(4, [eos])).toBe(maskStates.contradiction);
  expect(await next(0, at('yes!'))).toBe(maskStates.contradiction);
  // Starts anew after a hand-off or a preemption, and keeps requests apart.
  expect(await next(0, at('n'))).toContain('\ufffd');
  expect(await next(0, [], 1, 'other')).toBe('n y');
  expect(await next(2, [], 1, 'third')).toBe(maskStates.unknown);
  await host.receive({ kind: 'release', request: 'r' });
  expect(await next(1, [])).toBe(maskStates.unknown);
  expect(
    await compile('json_schema', '{"type":"object","properties":{"ab":{"const":true}},"required":["ab"]}'),
  ).toBeUndefined();
  expect(await next(0, [])).toContain('{"');
  expect(await next(0, [256, 259])).toBe('" ":');
  expect(await next(2, [257])).toContain('true');
  expect(await next(3, [258, ...at('}')])).toBe('end');
  expect(await compile('regex', '[ab]{2}')).toBeUndefined();
  expect(await next(0, [])).toBe('a b ab');
});

test.each([
  ['ebnf', 'root ::= "a" |', 'EBNF parser error at line 1, column 15'],
  ['ebnf', 'root ::= other', 'Rule "other" is not defined'],
  ['regex', 'a(b', 'Regex parsing error'],
  ['regex', '(?=a)b', 'at position 3: Lookahead is not supported yet.'],
  ['json_schema', '{"type":"string","minLength":5,"maxLength":2}', 'minLength 5 is greater than maxLength 2'],
  ['json_schema', '{"type":"string","pattern":"a","minLength":2}', 'is not supported yet, ignoring minLength'],
  ['json_schema', 'false', 'cannot accept any value'],
  ['structural_tag', '{"type":"nothing"}', 'must be a valid structural tag'],
] as const)('a fault names its place: %s %s', async (kind, text, reason) => {
  const { compile, next } = sharedHost;
  expect(await compile(kind, text)).toContain(reason);
  expect(await compile('ebnf', 'root ::= "b"')).toBeUndefined();
  expect(await next(0, [])).toBe('b');
});

const sharedHost = hostOf();

test('a full cache frees the oldest grammar without requests', async () => {
  const { compile, next } = hostOf({ ...grammarLimits, cacheBytesMax: 0 });
  expect(await compile('ebnf', 'root ::= "a"')).toBeUndefined();
  expect(await next(0, [])).toBe('a');
  expect(await compile('ebnf', 'root ::= "b"')).toBeUndefined();
  expect(await compile('ebnf', 'root ::= "c"')).toBeUndefined();
  expect(await next(0, [], 2, 'evicted')).toBe(maskStates.unknown);
  expect(await next(0, [], 1)).toBe('a');
  expect(await next(0, [], 3, 'kept')).toBe('c');
});

test('an allocation beyond the bound of memory ends the instance alone', async () => {
  const large = Array.from({ length: 40_000 }, (_, id) => encoder.encode(`${'x'.repeat(400)}${id}`));
  const create = (bytesMax: number) =>
    createXgrammar(bytesMax).api.TokenizerInfo.createTokenizerInfo(large, 'raw', false, large.length, [0]);
  await expect(create(24 << 20)).rejects.toThrow();
  const { compile } = sharedHost;
  expect(await compile('ebnf', 'root ::= "b"')).toBeUndefined();
});

test('white space between the parts of JSON is bounded, also in values without a schema and in structural tags', async () => {
  const { compile, next } = hostOf();
  const object = { type: 'object' };
  const tag = { type: 'tag', begin: '', content: { type: 'json_schema', json_schema: object }, end: '' };
  const inTag = JSON.stringify({ type: 'sequence', elements: [tag, { type: 'regex', pattern: '!' }] });
  for (const [kind, text] of [
    ['json_schema', JSON.stringify(object)],
    ['structural_tag', inTag],
  ] as const) {
    expect(await compile(kind, text)).toBeUndefined();
    for (const begun of ['{', '{"a"', '{"a":', '{"a":[', '{"a":[1', '{"a":[1,', '{"a":{']) {
      expect((await next(0, at(begun)))?.toString()).toContain('\n');
      expect((await next(0, at(`${begun}\n`)))?.toString()).not.toMatch(/\s{2,3}/);
    }
  }
});
