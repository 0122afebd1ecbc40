// Malformed bodies: each is served or refused in the OpenAI shape, and no refused request reaches the port.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { bytesOf } from '../openai/byte-tokenizer.ts';
import { accepted, finished, type Script, started, tokens } from '../scripted-port.ts';
import { answering, chat, gateway } from '../world.ts';

const completion = { model: 'bytes', prompt: 'x' };
const chatPath = '/v1/chat/completions';
const completionPath = '/v1/completions';

interface Refusal {
  readonly message: string;
  readonly type: string;
  readonly param: string | null;
  readonly code: string | null;
}

async function refusalOf(response: Response): Promise<Refusal> {
  const { error, ...rest } = (await response.json()) as { error: Refusal };
  expect(rest).toEqual({});
  expect(Object.keys(error).sort()).toEqual(['code', 'message', 'param', 'type']);
  expect(error.message).toMatch(/^Cannot /);
  expect(error.message.length).toBeLessThan(400);
  expect(response.headers.get('x-request-id')).toMatch(/^req-/);
  return error;
}

/** Values at and beyond the limits of every field. */
const odd = fc.oneof(
  fc.constantFrom(
    null,
    true,
    false,
    0,
    -0,
    -1,
    1,
    2,
    20,
    21,
    1e20,
    1e308,
    -1e308,
    0.5,
    2 ** 53,
    '',
    'x',
    '\ud800',
    '\0',
  ),
  fc.constantFrom(
    [],
    [[]],
    {},
    [null],
    [0],
    [-1],
    [1e20],
    ['x'],
    [''],
    [{}],
    { a: 1 },
    { 5: 1 },
    { 5: 'x' },
    { type: 'text' },
  ),
  fc.jsonValue({ maxDepth: 3 }),
);
const message = fc.record(
  {
    role: fc.oneof({ weight: 4, arbitrary: fc.constantFrom('system', 'developer', 'user', 'assistant') }, odd),
    content: fc.oneof(
      { weight: 4, arbitrary: fc.string() },
      fc.array(fc.record({ type: fc.constantFrom('text', 'image_url'), text: fc.oneof(fc.string(), odd) })),
      odd,
    ),
    name: odd,
    tool_calls: odd,
    refusal: odd,
  },
  { requiredKeys: ['role', 'content'] },
);
const fieldNames = [
  ...[
    'temperature',
    'top_p',
    'top_k',
    'min_p',
    'repetition_penalty',
    'frequency_penalty',
    'presence_penalty',
    'logit_bias',
  ],
  ...[
    'seed',
    'n',
    'stop',
    'stop_token_ids',
    'ignore_eos',
    'stream',
    'stream_options',
    'return_token_ids',
    'priority',
    'echo',
  ],
  ...[
    'return_tokens_as_token_ids',
    'max_tokens',
    'max_completion_tokens',
    'logprobs',
    'top_logprobs',
    'model',
    'messages',
  ],
  ...[
    'prompt',
    'tools',
    'tool_choice',
    'response_format',
    'user',
    'metadata',
    'store',
    'best_of',
    'constructor',
    '__proto__',
    'x',
  ],
];
const oddFields = fc.dictionary(fc.constantFrom(...fieldNames), odd, { maxKeys: 4 });
const bodies = fc.oneof(
  fc.tuple(
    fc.constant(completionPath),
    oddFields.map((fields) => ({ ...completion, ...fields })),
  ),
  fc.tuple(
    fc.constant(chatPath),
    oddFields.map((fields) => ({ ...chat, ...fields })),
  ),
  fc.tuple(
    fc.constant(chatPath),
    fc.array(message, { maxLength: 4 }).map((messages) => ({ ...chat, messages })),
  ),
  fc.tuple(
    fc.constant(completionPath),
    odd.map((prompt) => ({ ...completion, prompt })),
  ),
  fc.tuple(fc.constantFrom(chatPath, completionPath), odd),
);

describe('odd bodies', () => {
  it('are served, or refused with the field name before a request reaches the port', async () => {
    let served = 0;
    const check = async ([path, body]: [string, unknown]): Promise<void> => {
      const { post, port } = gateway(answering('xy'));
      const response = await post(path, JSON.stringify(body));
      if (response.status === 200) {
        served++;
        expect(await response.text()).not.toContain('"error"');
        expect(port.requests.length).toBeGreaterThan(0);
        return;
      }
      expect([400, 404]).toContain(response.status);
      await refusalOf(response);
      expect(port.requests).toHaveLength(0);
    };
    await fc.assert(fc.asyncProperty(bodies, check), { numRuns: 400 });
    expect(served).toBeGreaterThan(20);
  });

  it('are refused when they are not JSON, or truncated anywhere', async () => {
    const whole = Buffer.from(JSON.stringify({ ...chat, stop: ['é'] }));
    const { app, port } = gateway(answering('x'));
    for (let end = 0; end < whole.length; end++) {
      const response = await app.request(chatPath, { method: 'POST', body: whole.subarray(0, end) });
      expect(response.status).toBe(400);
      expect((await refusalOf(response)).code).toBe('invalid_json');
    }
    expect(port.requests).toHaveLength(0);
  });
});

const nested = (levels: number, open: string, close: string): string => open.repeat(levels) + close.repeat(levels);
const raw = (fields: string): string => `{"model":"bytes",${fields}}`;
const hostile: readonly (readonly [name: string, path: string, body: string, param: string | null])[] = [
  ['a deep prompt', completionPath, raw(`"prompt":${nested(100_000, '[', ']')}`), 'prompt'],
  ['a deep unsupported field', completionPath, raw(`"prompt":"x","tools":${nested(100_000, '[', ']')}`), 'tools'],
  [
    'deep objects',
    completionPath,
    raw(`"prompt":"x","logit_bias":${'{"a":'.repeat(50_000)}1${'}'.repeat(50_000)}`),
    'logit_bias',
  ],
  ['a prototype among biases', completionPath, raw('"prompt":"x","logit_bias":{"__proto__":1}'), 'logit_bias'],
  [
    'a prototype in a message',
    chatPath,
    raw('"messages":[{"role":"user","content":"x","__proto__":{"a":1}}]'),
    'messages',
  ],
  ['one bias given twice', completionPath, raw('"prompt":"x","logit_bias":{"05":1}'), 'logit_bias.05'],
  [
    'more prompts than can run',
    completionPath,
    JSON.stringify({ ...completion, prompt: Array(65).fill('a') }),
    'prompt',
  ],
  [
    'more choices than can run',
    completionPath,
    JSON.stringify({ ...completion, prompt: ['a', 'a', 'a', 'a', 'a'], n: 16 }),
    'n',
  ],
  [
    'one wrong id among many',
    completionPath,
    JSON.stringify({ ...completion, prompt: [...Array(2000).fill(1), -1] }),
    'prompt.2000',
  ],
  ['many wrong messages', chatPath, JSON.stringify({ ...chat, messages: Array(17_000).fill(5) }), 'messages'],
  ['a long stop string', completionPath, JSON.stringify({ ...completion, stop: 'x'.repeat(2000) }), 'stop'],
  [
    'a tool call in a message of the user',
    chatPath,
    raw(
      '"messages":[{"role":"user","content":"x","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}]',
    ),
    'messages.0.tool_calls',
  ],
  [
    'an unknown field of a message',
    chatPath,
    raw('"messages":[{"role":"user","content":"x","wings":2}]'),
    'messages.0.wings',
  ],
  ['a number above the largest double', completionPath, raw('"prompt":"x","temperature":1e999'), 'temperature'],
];

describe('hostile bodies', () => {
  it.each(hostile)('%s', async (_name, path, body, param) => {
    const { post, port } = gateway(answering('x'), { bodyBytesMax: 1 << 20 });
    const response = await post(path, body);
    expect(response.status).toBe(400);
    expect((await refusalOf(response)).param).toBe(param);
    expect(port.requests).toHaveLength(0);
  });

  it('refuses bytes that are not UTF-8', async () => {
    const { app, port } = gateway(answering('x'));
    const body = Buffer.from(JSON.stringify({ ...completion, prompt: 'Q' }));
    body[body.indexOf('Q')] = 0xff;
    const response = await app.request(completionPath, { method: 'POST', body });
    expect(response.status).toBe(400);
    expect((await refusalOf(response)).message).toContain('UTF-8');
    expect(port.requests).toHaveLength(0);
  });

  it('stops reading a body at the limit, announced or not', async () => {
    let sent = 0;
    const body = new ReadableStream<Uint8Array>({
      pull: (controller) => {
        sent++;
        controller.enqueue(new Uint8Array(1000).fill(0x20));
      },
    });
    const { app } = gateway(answering('x'));
    const response = await app.request(completionPath, { method: 'POST', body, duplex: 'half' } as RequestInit);
    expect(response.status).toBe(413);
    expect((await refusalOf(response)).code).toBe('body_too_large');
    expect(sent).toBeLessThan(20);
  });

  it('accepts empty members of messages, which clients return from responses', async () => {
    const { post, port } = gateway(answering('x'));
    const reply = { role: 'assistant', content: 'hello', refusal: null, annotations: [], tool_calls: [], audio: null };
    const response = await post(chatPath, { ...chat, messages: [...chat.messages, reply] });
    expect(response.status).toBe(200);
    expect(port.requests[0]?.prompt).toEqual(Int32Array.from(bytesOf('user:hi;assistant:hello;assistant:')));
  });
});

describe('stop ids', () => {
  it('end the output without their own text, and are reported', async () => {
    const script: Script = ({ stopTokenIds }) => {
      expect(stopTokenIds).toContain(98);
      return [accepted, started(0), tokens([97]), tokens([98]), finished('stop')];
    };
    const { post } = gateway(script);
    const response = await post(completionPath, { ...completion, stop_token_ids: [98], return_token_ids: true });
    expect(await response.json()).toMatchObject({
      choices: [{ text: 'a', token_ids: [97, 98], finish_reason: 'stop' }],
      usage: { completion_tokens: 2 },
    });
  });
});
