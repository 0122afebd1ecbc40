// /tokenize and /detokenize: the shapes of vLLM, over texts, messages and ids.
import { describe, expect, it } from 'vitest';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { answering, gateway, gatewayOptions } from '../world.ts';
import { bytesOf } from './byte-tokenizer.ts';

const { model } = gatewayOptions(gateway(answering('x')).port);

async function answer(
  path: string,
  body: object,
  more = {},
): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await gateway(answering('x'), more).post(path, body);
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

describe('/tokenize', () => {
  it.each([
    ['a text', { prompt: 'hé' }, 'hé', null],
    ['a text, with the text of each token', { prompt: 'hi', return_token_strs: true }, 'hi', ['h', 'i']],
    ['an empty text', { model: 'bytes', prompt: '' }, '', null],
    ['messages', { messages: [{ role: 'user', content: 'hi' }] }, 'user:hi;assistant:', null],
  ])('returns the ids of %s', async (_, body, text, strings) => {
    const ids = bytesOf(text);
    expect((await answer('/tokenize', body)).body).toEqual({
      ...{ count: ids.length, max_model_len: 100, tokens: ids, token_strs: strings },
    });
  });

  it('adds special tokens to a text, and to messages if requested', async () => {
    const asked: boolean[] = [];
    const encode = async (text: string, addSpecial: boolean): Promise<Int32Array> => {
      asked.push(addSpecial);
      return Int32Array.from(bytesOf(text));
    };
    const messages = [{ role: 'user', content: 'hi' }];
    await answer('/tokenize', { prompt: 'a' }, { encode });
    await answer('/tokenize', { prompt: 'a', add_special_tokens: false }, { encode });
    await answer('/tokenize', { messages }, { encode });
    await answer('/tokenize', { messages, add_special_tokens: true }, { encode });
    expect(asked).toEqual([true, false, false, true]);
  });

  it.each([
    [400, 'prompt', {}],
    [400, 'prompt', { prompt: 'a', messages: [{ role: 'user', content: 'a' }] }],
    [400, 'chat_template', { prompt: 'a', chat_template: 'x' }],
    [404, 'model', { prompt: 'a', model: 'other' }],
  ])('refuses with %i, naming %s', async (status, param, body) => {
    expect(await answer('/tokenize', body)).toMatchObject({ status, body: { error: { param } } });
  });
});

describe('/detokenize', () => {
  it('returns the text of ids, special tokens included', async () => {
    const tokens = [...bytesOf('hé'), 256];
    expect((await answer('/detokenize', { tokens })).body).toEqual({ prompt: 'hé<eos>' });
  });

  it.each([
    [{ tokens: [257] }, 'tokens'],
    [{ tokens: [1, 'x'] }, 'tokens.1'],
    [{ tokens: 'x' }, 'tokens'],
    [{}, 'tokens'],
  ])('refuses %j', async (body, param) => {
    expect(await answer('/detokenize', body)).toMatchObject({ status: 400, body: { error: { param } } });
  });
});

it('both need a key where others do, and a tokenizer', async () => {
  const keys = new ApiKeys({ users: ['secret'], admins: [] });
  expect((await answer('/tokenize', { prompt: 'a' }, { keys })).status).toBe(401);
  expect((await answer('/detokenize', { tokens: [] }, { keys })).status).toBe(401);
  const bare = { model: { ...model, tokenizer: undefined } };
  expect((await answer('/tokenize', { prompt: 'a' }, bare)).status).toBe(400);
  expect((await answer('/detokenize', { tokens: [] }, bare)).status).toBe(400);
});
