// A model without tokenizer and template here: engines render, tokenize and decode.
import { expect, it } from 'vitest';
import type { EngineChat } from '../../../src/gateway/http/served-model.ts';
import { accepted, finished, type Script, ScriptedPort, started } from '../scripted-port.ts';
import { chat, events, gateway, gatewayOptions } from '../world.ts';

const ids = Int32Array.from([5, 6, 7]);
const script: Script = () => [
  ...[accepted, started(0)],
  { kind: 'tokens', tokens: Int32Array.of(1, 2), logprobs: undefined, text: 'Once ' },
  { kind: 'tokens', tokens: Int32Array.of(3), logprobs: undefined, text: 'upon' },
  { kind: 'tokens', tokens: new Int32Array(0), logprobs: undefined, text: ' a time' },
  finished('stop'),
];

function engines(contextTokens = 100) {
  const asked: (EngineChat | string)[] = [];
  const { model } = gatewayOptions(new ScriptedPort(script));
  const { post, port } = gateway(script, {
    model: {
      ...{ ...model, contextTokens, tokenizer: undefined, chatTemplate: undefined, eosIds: [] },
      engineText: {
        chat: async (given) => {
          asked.push(given);
          return ids;
        },
      },
    },
    encode: async (text) => {
      asked.push(text);
      return ids;
    },
  });
  return { post, port, asked };
}

it('answers chats and completions with the text of the engine, up to a stop string', async () => {
  const { post, port, asked } = engines();
  const answer = await post('/v1/chat/completions', { ...chat, reasoning_effort: 'low', ignore_eos: true });
  expect(await answer.json()).toMatchObject({
    choices: [{ message: { content: 'Once upon a time' } }],
    usage: { prompt_tokens: 3, completion_tokens: 3 },
  });
  const streamed = await post('/v1/completions', { model: 'bytes', prompt: 'It', stream: true, stop: ['a t'] });
  const chunks = (await events(streamed)) as readonly (
    | string
    | { readonly choices: readonly { readonly text: string }[] }
  )[];
  const texts = chunks.flatMap((chunk) => (typeof chunk === 'string' ? [] : chunk.choices.map(({ text }) => text)));
  expect(texts.join('')).toBe('Once upon ');
  expect(asked).toEqual([{ messages: chat.messages, chat_template_kwargs: { reasoning_effort: 'low' } }, 'It']);
  expect(port.requests.map(({ engineText, stopTokenIds }) => [engineText, stopTokenIds])).toEqual([
    [{ ignoresEos: true, keepsSpecial: false }, []],
    [{ ignoresEos: false, keepsSpecial: false }, []],
  ]);
});

it('tokenizes texts and messages, and refuses what needs the vocabulary or the template here', async () => {
  const { post } = engines();
  for (const body of [{ prompt: 'It' }, { messages: chat.messages }])
    expect(await (await post('/tokenize', body)).json()).toMatchObject({ count: 3, tokens: [5, 6, 7] });
  const tools = [{ type: 'function', function: { name: 'f', parameters: {} } }];
  for (const [path, body, field] of [
    ['/v1/chat/completions', { ...chat, tools }, 'tools'],
    ['/v1/chat/completions', { ...chat, reasoning_format: 'auto' }, 'reasoning_format'],
    ['/v1/chat/completions', { ...chat, response_format: { type: 'json_object' } }, 'response_format'],
    ['/v1/completions', { model: 'bytes', prompt: 'It', echo: true }, 'echo'],
    ['/detokenize', { tokens: [1] }, 'tokens'],
  ] as const) {
    const response = await post(path, body);
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ error: { param: field } });
  }
});

it('refuses a text that no vocabulary fits into the context, before an engine tokenizes it', async () => {
  const { post, asked } = engines(4);
  const text = 'x'.repeat(4 * 1024 + 1);
  const messages = [{ role: 'user', content: text }];
  for (const [path, body] of [
    ['/v1/completions', { model: 'bytes', prompt: text }],
    ['/v1/chat/completions', { model: 'bytes', messages }],
    ['/tokenize', { prompt: text }],
    ['/tokenize', { messages }],
  ] as const) {
    const answer = await post(path, body);
    expect([answer.status, await answer.json()]).toMatchObject([400, { error: { code: 'context_length_exceeded' } }]);
  }
  expect(asked).toEqual([]);
});
