// Fields that constrain the output: the grammar that reaches the instance, and refusals that name the field and the place.
import { describe, expect, it } from 'vitest';
import type { Grammar, GrammarCompiler } from '../../../src/core/protocol/grammar.ts';
import { answering, gateway } from '../world.ts';

const chat = { model: 'bytes', messages: [{ role: 'user', content: 'hi' }], max_tokens: 5 };
const completion = { model: 'bytes', prompt: 'x', max_tokens: 5 };
const schema = { type: 'object', properties: { a: { enum: ['x', null] }, b: { const: null } }, required: ['a'] };
const format = (of: unknown, more = {}) => ({
  response_format: { type: 'json_schema', json_schema: { name: 'answer', schema: of, ...more } },
});

/** A compiler that refuses the text `refused`. */
const grammars: GrammarCompiler = {
  compile: async ({ text }) => (text.includes('refused') ? 'line 1, column 2: expected an element' : undefined),
};

async function grammarOf(body: object, path = '/v1/chat/completions'): Promise<Grammar | undefined> {
  const { post, port } = gateway(answering('x'), { grammars });
  const response = await post(path, { ...(path.includes('chat') ? chat : completion), ...body });
  expect(response.status, await response.clone().text()).toBe(200);
  return port.requests[0]?.grammar;
}

async function refusal(body: object, more: object = { grammars }): Promise<{ param: string; message: string }> {
  const { post, port } = gateway(answering('x'), more);
  const response = await post('/v1/chat/completions', { ...chat, ...body });
  expect(response.status).toBe(400);
  expect(port.requests).toHaveLength(0);
  return ((await response.json()) as { error: { param: string; message: string } }).error;
}

describe('grammars of requests', () => {
  it('come from response_format, with the nulls of a schema', async () => {
    expect(await grammarOf(format(schema, { strict: true, description: null }))).toEqual({
      kind: 'json_schema',
      text: JSON.stringify(schema),
    });
    expect(await grammarOf({ response_format: { type: 'json_object' } })).toEqual({
      kind: 'json_schema',
      text: '{"type":"object"}',
    });
    expect(await grammarOf({ response_format: { type: 'text' } })).toBeUndefined();
    expect(await grammarOf({ response_format: null })).toBeUndefined();
  });

  it.each([
    [{ json: schema }, 'json_schema', JSON.stringify(schema)],
    [{ json: JSON.stringify(schema), regex: null }, 'json_schema', JSON.stringify(schema)],
    [{ regex: '[a-z]+' }, 'regex', '[a-z]+'],
    [{ grammar: 'root ::= "a"' }, 'ebnf', 'root ::= "a"'],
    [{ choice: ['a "b"\\', 'c\nd'] }, 'ebnf', 'root ::= "a \\"b\\"\\\\" | "c\\x0ad"'],
    [{ json_object: true }, 'json_schema', '{"type":"object"}'],
    [{ structural_tag: '{ "type": "any_text" }' }, 'structural_tag', '{"type":"any_text"}'],
  ])('come from structured_outputs: %j', async (structured_outputs, kind, text) => {
    expect(await grammarOf({ structured_outputs })).toEqual({ kind, text });
    expect(await grammarOf({ structured_outputs }, '/v1/completions')).toEqual({ kind, text });
  });

  it('apply to every choice', async () => {
    const { post, port } = gateway(answering('x'), { grammars });
    await post('/v1/completions', { ...completion, n: 2, structured_outputs: { regex: 'a' } });
    expect(port.requests.map(({ grammar }) => grammar?.text)).toEqual(['a', 'a']);
  });
});

describe('refusals', () => {
  const at = 'response_format.json_schema.schema';
  const nested = { type: 'object', properties: { age: { type: 'integer', multipleOf: 2 } } };
  it.each([
    ['an unsupported keyword', format(nested), at, `'${at}.properties.age.multipleOf' is a keyword`],
    ['an unknown type', format({ anyOf: [{ type: 'objec' }] }), at, `'${at}.anyOf.0.type' must be one of string`],
    ['a reference to nothing', format({ items: { $ref: '#/$defs/x' } }), at, "points to '#/$defs/x'"],
    ['a reference elsewhere', format({ $ref: 'http://x' }), at, 'must point into the schema itself'],
    ['a schema that is none', format({ properties: { a: 1 } }), at, `'${at}.properties.a' must be a JSON schema`],
    [
      'a grammar that does not compile',
      { structured_outputs: { grammar: 'refused' } },
      'structured_outputs.grammar',
      'line 1, column 2',
    ],
    ['two members', { structured_outputs: { json: {}, regex: 'a' } }, 'structured_outputs', 'got json, regex'],
    ['no member', { structured_outputs: {} }, 'structured_outputs', 'got none'],
    ['an unknown member', { structured_outputs: { lark: 'a' } }, 'structured_outputs', "unknown member 'lark'"],
    ['text that is no JSON', { structured_outputs: { json: '{' } }, 'structured_outputs.json', 'is no JSON'],
    [
      'an empty choice',
      { structured_outputs: { choice: [''] } },
      'structured_outputs.choice.0',
      'at least 1 characters',
    ],
    ['a missing schema', { response_format: { type: 'json_schema', json_schema: { name: 'a' } } }, at, 'is missing'],
    ['an unknown format', { response_format: { type: 'xml' } }, 'response_format.type', 'must have the type'],
    [
      'a long grammar',
      { structured_outputs: { choice: Array(4000).fill('x'.repeat(20)) } },
      'structured_outputs.choice',
      'is too long',
    ],
    ['two grammars', { ...format({}), structured_outputs: { regex: 'a' } }, 'structured_outputs', 'both constrain'],
    ['ignore_eos', { ...format({}), ignore_eos: true }, 'ignore_eos', 'ends where its grammar ends'],
  ])('name the field and the place: %s', async (_name, body, param, text) => {
    const error = await refusal(body, { grammars, bodyBytesMax: 1 << 20 });
    expect(error.param).toBe(param);
    expect(error.message).toContain(text);
    expect(error.message).toMatch(/^Cannot /);
  });

  it('a server without a compiler, and a model without a tokenizer, refuse grammars', async () => {
    expect((await refusal(format({}), {})).message).toContain('not supported by this server');
    const { model } = gateway(answering('x')).options;
    const { message } = await refusal(format({}), { grammars, model: { ...model, eosIds: [] } });
    expect(message).toContain("end-of-sequence token: 'bytes' has none");
  });
});
