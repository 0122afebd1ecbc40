// The official Anthropic client against /v1/messages: requests, the order of events, tools, errors and cancels.
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { bytesOf } from '../openai/byte-tokenizer.ts';
import { accepted, finished, started, tokens } from '../scripted-port.ts';
import { apiKey, callText, contextTokens, ProtocolWorld } from './protocol-world.ts';

let world: ProtocolWorld;
let client: Anthropic;
beforeAll(async () => {
  world = await ProtocolWorld.start();
  client = new Anthropic({ baseURL: world.url, apiKey, maxRetries: 0, timeout: 60_000 });
});
afterAll(() => world.stop());
beforeEach(() => world.outputs('Hello'));

type Params = Anthropic.MessageCreateParamsNonStreaming;
const hi = { model: 'bytes', max_tokens: 500, messages: [{ role: 'user', content: 'hi' }] } satisfies Params;
const create = (more: Partial<Params> = {}) => client.messages.create({ ...hi, ...more });

const weather = {
  name: 'weather',
  description: 'The weather of a place',
  input_schema: { type: 'object', properties: { place: { type: 'string' } } },
} satisfies Anthropic.Tool;

async function streamed(more: Partial<Params> = {}): Promise<Anthropic.RawMessageStreamEvent[]> {
  const events: Anthropic.RawMessageStreamEvent[] = [];
  for await (const event of await client.messages.create({ ...hi, ...more, stream: true })) events.push(event);
  return events;
}

/** Types of events, each repetition once. */
const typesOf = (events: readonly { readonly type: string }[]): string[] =>
  events.map(({ type }) => type).filter((type, i, all) => type !== all[i - 1]);

describe('a message', () => {
  it('has text, a reason and usage', async () => {
    const { id, ...message } = await create();
    expect(id).toMatch(/^msg-[0-9a-f]{32}$/);
    expect(message).toMatchObject({
      ...{ type: 'message', role: 'assistant', model: 'bytes', stop_reason: 'end_turn', stop_sequence: null },
      content: [{ type: 'text', text: 'Hello' }],
      usage: {
        input_tokens: world.prompt.length - 2,
        cache_read_input_tokens: 2,
        cache_creation_input_tokens: 0,
        output_tokens: 5,
      },
    });
  });

  it.each([
    [
      'a system prompt',
      { system: 'Be brief.' },
      '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>',
    ],
    [
      'blocks of a system prompt, without the header that changes with each request',
      { system: ['x-anthropic-billing-header: cch=1', 'Be brief.'].map((text) => ({ type: 'text' as const, text })) },
      '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>',
    ],
    [
      'earlier turns, with messages of one role joined',
      {
        messages: [
          { role: 'user' as const, content: 'a' },
          { role: 'assistant' as const, content: [{ type: 'text' as const, text: 'b' }] },
          { role: 'user' as const, content: 'c' },
          { role: 'user' as const, content: [{ type: 'text' as const, text: 'd' }] },
        ],
      },
      '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc\nd<|im_end|>',
    ],
    [
      'marks of cached prefixes',
      {
        cache_control: { type: 'ephemeral' as const },
        system: [
          { type: 'text' as const, text: 'S', cache_control: { type: 'ephemeral' as const, ttl: '1h' as const } },
        ],
      },
      '<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>',
    ],
  ])('has %s in its prompt', async (_, more, prompt) => {
    await create(more);
    expect(world.prompt).toContain(prompt);
    expect(world.prompt).not.toContain('billing');
  });

  it('continues a last message of the assistant', async () => {
    await create({ messages: [...hi.messages, { role: 'assistant', content: 'The answer is' }] });
    expect(world.prompt).toMatch(/The answer is$/);
  });

  it('is sampled with the fields of the request', async () => {
    await create({ temperature: 0.5, top_p: 0.9, top_k: 7, max_tokens: 9 } as Partial<Params>);
    expect(world.request).toMatchObject({ maxTokens: 9, sampling: { temperature: 0.5, topP: 0.9, topK: 7 } });
  });

  it('ends before a stop sequence, and names it', async () => {
    const { content, stop_reason, stop_sequence } = await create({ stop_sequences: ['zz', 'lo'] });
    expect({ content, stop_reason, stop_sequence }).toMatchObject({
      ...{ content: [{ text: 'Hel' }], stop_reason: 'stop_sequence', stop_sequence: 'lo' },
    });
  });

  it.each([
    ['max_tokens', 3, 3],
    ['model_context_window_exceeded', 100_000, undefined],
  ])('ends with %s where its output is cut', async (reason, max_tokens, most) => {
    world.outputs('Hello', 'length');
    const { stop_reason } = await create({ max_tokens });
    expect(stop_reason).toBe(reason);
    expect(world.request.maxTokens).toBe(most ?? contextTokens - world.prompt.length);
  });

  it('has reasoning as a thinking block, which a request may turn off', async () => {
    world.outputs('<think>\nwhy\n</think>\n\nHello');
    const { content, usage } = await create({ thinking: { type: 'enabled', budget_tokens: 1024 } });
    expect(usage.output_tokens_details?.thinking_tokens).toBe(usage.output_tokens - 'Hello'.length);
    expect(content).toMatchObject([
      { type: 'thinking', thinking: expect.stringContaining('why') },
      { type: 'text', text: 'Hello' },
    ]);
    await create({ thinking: { type: 'disabled' } });
    expect(world.prompt).toMatch(/<think>\n\n<\/think>\n\n$/);
  });

  it('follows the schema of output_config.format', async () => {
    const schema = { type: 'object', properties: { n: { type: 'integer' } } };
    await create({ output_config: { format: { type: 'json_schema', schema } } });
    expect(world.request.grammar?.text).toContain(JSON.stringify(schema));
  });

  it('accepts metadata and a service tier', async () => {
    expect((await create({ metadata: { user_id: 'u' }, service_tier: 'auto' })).type).toBe('message');
  });
});

describe('tools', () => {
  it('are called with parsed arguments', async () => {
    world.outputs(callText('weather', { place: 'Rome' }));
    const { content, stop_reason } = await create({ tools: [weather] });
    expect(stop_reason).toBe('tool_use');
    expect(content).toMatchObject([
      { type: 'tool_use', id: expect.stringMatching(/./), name: 'weather', input: { place: 'Rome' } },
    ]);
    expect(world.prompt).toContain('"name": "weather"');
  });

  it('make a round trip: the call and its result are in the next prompt', async () => {
    world.outputs(callText('weather', { place: 'Rome', unit: null }));
    const { content } = await create({ tools: [weather] });
    const [call] = content;
    if (call?.type !== 'tool_use') throw new Error('no call');
    world.outputs('Sunny');
    const answer = await create({
      tools: [weather],
      messages: [
        ...hi.messages,
        { role: 'assistant', content },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: call.id, content: [{ type: 'text', text: '21 degrees' }] },
            { type: 'text', text: 'Well?' },
          ],
        },
      ],
    });
    expect(answer.content).toMatchObject([{ type: 'text', text: 'Sunny' }]);
    expect(world.prompt).toContain('{"name": "weather", "arguments": {"place": "Rome", "unit": null}}');
    expect(world.prompt).toContain('<tool_response>\n21 degrees\n</tool_response>');
    expect(world.prompt).toContain('<|im_start|>user\nWell?<|im_end|>');
  });

  it('that fail are marked as errors', async () => {
    const result = { type: 'tool_result', tool_use_id: 'a', content: 'no such file', is_error: true } as const;
    const use = { type: 'tool_use', id: 'a', name: 'weather', input: {} } as const;
    await create({
      tools: [weather],
      messages: [...hi.messages, { role: 'assistant', content: [use] }, { role: 'user', content: [result] }],
    });
    expect(world.prompt).toContain('<tool_response>\nError: no such file\n</tool_response>');
  });

  it('may be called several times at once, or once', async () => {
    world.outputs(`${callText('weather', { place: 'A' })}\n${callText('weather', { place: 'B' })}`);
    expect((await create({ tools: [weather] })).content).toHaveLength(2);
    const tool_choice = { type: 'auto', disable_parallel_tool_use: true } as const;
    expect((await create({ tools: [weather], tool_choice })).content).toHaveLength(1);
  });

  it.each([
    ['any', { type: 'any' }],
    ['tool', { type: 'tool', name: 'weather' }],
  ] as const)('are required by the choice %s: a grammar constrains the output', async (_, tool_choice) => {
    world.outputs(callText('weather', { place: 'Rome' }));
    const { stop_reason } = await create({ tools: [weather], tool_choice });
    expect(stop_reason).toBe('tool_use');
    expect(world.request.grammar?.text).toContain('weather');
  });

  it('are text where the choice is none', async () => {
    world.outputs('no tools');
    const { content } = await create({ tools: [weather], tool_choice: { type: 'none' } });
    expect(content).toMatchObject([{ type: 'text', text: 'no tools' }]);
  });
});

describe('a stream', () => {
  it('has the events of the protocol in their order', async () => {
    const events = await streamed();
    expect(typesOf(events)).toEqual([
      ...['message_start', 'content_block_start', 'content_block_delta', 'content_block_stop'],
      ...['message_delta', 'message_stop'],
    ]);
    expect(events[0]).toMatchObject({
      message: { content: [], stop_reason: null, usage: { cache_read_input_tokens: 2, output_tokens: 0 } },
    });
    expect(events.at(-2)).toMatchObject({ delta: { stop_reason: 'end_turn' }, usage: { output_tokens: 5 } });
  });

  it('closes each block before it opens the next one', async () => {
    world.outputs(`<think>\nwhy\n</think>\n\nLook:\n${callText('weather', { place: 'Rome' })}`);
    const blocks = (await streamed({ tools: [weather] })).flatMap((event) =>
      event.type === 'content_block_start'
        ? [`${event.index} ${event.content_block.type}`]
        : event.type === 'content_block_stop'
          ? [`${event.index} stop`]
          : [],
    );
    expect(blocks).toEqual(['0 thinking', '0 stop', '1 text', '1 stop', '2 tool_use', '2 stop']);
  });

  it('sends the arguments of a call as JSON text', async () => {
    world.outputs(callText('weather', { place: 'Rome' }));
    const json = (await streamed({ tools: [weather] })).map((event) =>
      event.type === 'content_block_delta' && event.delta.type === 'input_json_delta' ? event.delta.partial_json : '',
    );
    expect(JSON.parse(json.join(''))).toEqual({ place: 'Rome' });
    expect((await streamed({ tools: [weather] })).at(-2)).toMatchObject({ delta: { stop_reason: 'tool_use' } });
  });

  it.each([
    ['text', 'Hello'],
    ['reasoning, text and a call', `<think>\nwhy\n</think>\n\nLook:\n${callText('weather', { place: 'Rome' })}`],
  ])('gives the message of a response without a stream: %s', async (_, text) => {
    world.outputs(text);
    const whole = await create({ tools: [weather] });
    const final = await client.messages.stream({ ...hi, tools: [weather] }).finalMessage();
    const contents = [whole, final].map(({ content, stop_reason }) =>
      JSON.stringify([stop_reason, content.map((block) => ({ ...block, id: undefined }))]),
    );
    expect(contents[0]).toBe(contents[1]);
  });

  it('begins with the message where tokens overtake the start', async () => {
    world.plays([accepted, tokens([65]), started(0), finished('stop')]);
    expect(typesOf(await streamed())).toEqual([
      ...['message_start', 'content_block_start', 'content_block_delta', 'content_block_stop'],
      ...['message_delta', 'message_stop'],
    ]);
  });

  it('keeps the end of a call apart from text after it', async () => {
    const bytes = bytesOf(`${callText('weather', { place: 'Rome' })}Done.`);
    const cut = bytes.length - 20;
    const pieces = [bytes.slice(0, cut), bytes.slice(cut)].map((ids) => tokens(ids));
    world.plays([accepted, started(0), ...pieces, finished('stop')]);
    const { content } = await create({ tools: [weather] });
    expect(content).toMatchObject([
      { type: 'tool_use', input: { place: 'Rome' } },
      { type: 'text', text: 'Done.' },
    ]);
  });

  it('reports a failure on its way as an error event', async () => {
    const failed = { kind: 'failed', code: 'ENGINE_FAILED', message: 'Cannot go on', retryAfterMs: undefined } as const;
    world.plays([accepted, started(0), tokens([65]), failed]);
    const seen: string[] = [];
    const run = async (): Promise<void> => {
      for await (const { type } of await client.messages.create({ ...hi, stream: true })) seen.push(type);
    };
    await expect(run()).rejects.toThrow(/Cannot go on/);
    expect(seen).toEqual(['message_start', 'content_block_start', 'content_block_delta']);
  });
});

describe('an error', () => {
  const failed = (code: 'KV_OVERLOADED' | 'NOT_READY', retryAfterMs: number) =>
    ({ kind: 'failed', code, message: 'Cannot admit request', retryAfterMs }) as const;
  const image = { type: 'image', source: { type: 'url', url: 'http://x/y.png' } } as const;
  const use = { type: 'tool_use', id: 'a', name: 'weather', input: {} } as const;

  it.each<[string, Partial<Params>, number, string, RegExp]>([
    ['an unknown model', { model: 'nope' }, 404, 'not_found_error', /Cannot find model 'nope'/],
    [
      'a range',
      { temperature: 3 } as Partial<Params>,
      400,
      'invalid_request_error',
      /'temperature' must be at most 2, got 3/,
    ],
    ['no messages', { messages: [] }, 400, 'invalid_request_error', /'messages' must be a list/],
    [
      'an image',
      { messages: [{ role: 'user', content: [image] }] },
      400,
      'invalid_request_error',
      /messages\.0\.content\.0.*block of the type text/,
    ],
    [
      'a call of the user',
      { messages: [{ role: 'user', content: [use] }] },
      400,
      'invalid_request_error',
      /messages\.0\.content\.0.*tool_use in a message of role user/,
    ],
    [
      'a schema of the output',
      { output_config: { format: { type: 'json_schema', schema: { type: 'integer', multipleOf: 2 } } } },
      400,
      'invalid_request_error',
      /'output_config\.format\.schema\.multipleOf' is a keyword/,
    ],
    [
      'a schema of a strict tool',
      { tools: [{ ...weather, strict: true, input_schema: { type: 'object', not: {} } }] } as Partial<Params>,
      400,
      'invalid_request_error',
      /'tools\.0\.input_schema\.not' is a keyword/,
    ],
    [
      'a tool of the server',
      { tools: [{ type: 'web_search_20250305', name: 'web_search' }] },
      400,
      'invalid_request_error',
      /'tools\.0\.(type|input_schema)'/,
    ],
    [
      'an unknown field',
      { frequency: 1 } as Partial<Params>,
      400,
      'invalid_request_error',
      /unknown field 'frequency'/,
    ],
    [
      'a long prompt',
      { messages: [{ role: 'user', content: 'x'.repeat(4001) }] },
      400,
      'invalid_request_error',
      /the context is 4000 tokens/,
    ],
    [
      'a large body',
      { messages: [{ role: 'user', content: 'x'.repeat(10_001) }] },
      413,
      'request_too_large',
      /larger than 10000 bytes/,
    ],
  ])('names %s', async (_, more, status, type, message) => {
    const error = await create(more).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(Anthropic.APIError);
    expect(error).toMatchObject({
      status,
      error: { type: 'error', error: { type, message: expect.stringMatching(message) } },
    });
    expect((error as { requestID: string }).requestID).toMatch(/^req-/);
  });

  it.each([
    ['an overload', failed('KV_OVERLOADED', 2000), Anthropic.RateLimitError, 'rate_limit_error', '2'],
    ['a start', failed('NOT_READY', 1000), Anthropic.InternalServerError, 'overloaded_error', '1'],
  ])('of %s has its class, and Retry-After', async (_, event, kind, type, after) => {
    world.plays([event]);
    const error = await create().catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(kind);
    expect(error).toMatchObject({ error: { error: { type } } });
    expect((error as InstanceType<typeof kind>).headers?.get('retry-after')).toBe(after);
  });

  it('refuses a wrong key; a key may come in either header', async () => {
    const wrong = new Anthropic({ baseURL: world.url, apiKey: 'wrong', maxRetries: 0 });
    await expect(wrong.messages.create(hi)).rejects.toBeInstanceOf(Anthropic.AuthenticationError);
    const bearer = new Anthropic({ baseURL: world.url, apiKey: null, authToken: apiKey, maxRetries: 0 });
    expect((await bearer.messages.create(hi)).type).toBe('message');
  });
});

describe('a cancel', () => {
  const patience = { timeout: 60_000 };
  const cancels = async (act: () => Promise<void>): Promise<void> => {
    const before = world.port.cancels;
    await act();
    await expect.poll(() => world.port.cancels, patience).toBe(before + 1);
  };

  it('of a stream ends its request', async () => {
    world.plays([accepted, started(0), tokens([65])]);
    await cancels(async () => {
      const stream = await client.messages.create({ ...hi, stream: true });
      for await (const { type } of stream) if (type === 'content_block_delta') break;
    });
  });

  it('of a response without a stream ends its request', async () => {
    world.plays([accepted, started(0), tokens([65])]);
    await cancels(async () => {
      const aborting = new AbortController();
      const pending = client.messages.create(hi, { signal: aborting.signal });
      const requests = world.port.requests.length;
      await expect.poll(() => world.port.requests.length, patience).toBe(requests + 1);
      aborting.abort();
      await expect(pending).rejects.toBeInstanceOf(Anthropic.APIUserAbortError);
    });
  });
});

describe('count_tokens', () => {
  it('counts the prompt of a message', async () => {
    const fields = { model: 'bytes', system: 'Be brief.', tools: [weather], messages: hi.messages };
    const { input_tokens } = await client.messages.countTokens(fields);
    const { usage } = await create(fields);
    expect(input_tokens).toBe(usage.input_tokens + (usage.cache_read_input_tokens ?? 0));
    expect(input_tokens).toBe(world.prompt.length);
  });

  it('refuses another model in the shape of the protocol', async () => {
    const counted = client.messages.countTokens({ model: 'nope', messages: hi.messages });
    await expect(counted).rejects.toBeInstanceOf(Anthropic.NotFoundError);
  });
});

describe('cache_control', () => {
  const ephemeral = { type: 'ephemeral' } as const;
  const system = [
    { type: 'text' as const, text: 'You are brief.' },
    { type: 'text' as const, text: 'Rules.', cache_control: { ...ephemeral, ttl: '1h' as const } },
  ];
  const turn = (text: string) => ({
    role: 'user' as const,
    content: [{ type: 'text' as const, text, cache_control: ephemeral }],
  });
  const answer = { role: 'assistant' as const, content: 'Hello' };
  beforeEach(() => world.cluster.pins.clear());

  it('pins prefixes for their time, and replaces those of earlier turns', async () => {
    await create({ system, tools: [weather], messages: [turn('first question')] });
    const [head, whole] = world.pinned;
    expect(head).toEqual([3600, expect.stringMatching(/Rules\.(.|\n)*weather(.|\n)*<\|im_start\|>user\n$/)]);
    expect(whole).toEqual([300, expect.stringMatching(/first question$/)]);
    await create({ system, tools: [weather], messages: [turn('first question'), answer, turn('next question')] });
    expect(world.pinned).toEqual([head, [300, expect.stringMatching(/first question(.|\n)*next question$/)]]);
  });

  it('of the request marks its last block; a stream pins it too', async () => {
    await streamed({ cache_control: ephemeral, messages: [{ role: 'user', content: 'only question' }] });
    await expect
      .poll(() => world.pinned, { timeout: 60_000 })
      .toEqual([[300, expect.stringMatching(/only question$/)]]);
  });

  it('pins nothing without marks, and is without effect where memory is short', async () => {
    await create({ system: 'S' });
    world.cluster.isFull = true;
    expect((await create({ system, messages: [turn('a question')] })).type).toBe('message');
    expect(world.pinned).toEqual([]);
  });
});
