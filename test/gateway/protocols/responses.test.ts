// The official OpenAI client against /v1/responses: requests, the order of events, tools, errors and cancels.
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { accepted, started, tokens } from '../scripted-port.ts';
import { apiKey, callText, ProtocolWorld } from './protocol-world.ts';

let world: ProtocolWorld;
let client: OpenAI;
beforeAll(async () => {
  world = await ProtocolWorld.start();
  client = new OpenAI({ baseURL: `${world.url}/v1`, apiKey, maxRetries: 0 });
});
afterAll(() => world.stop());
beforeEach(() => world.outputs('Hello'));

type Params = OpenAI.Responses.ResponseCreateParamsNonStreaming;
const hi = { model: 'bytes', input: 'hi', store: false } satisfies Params;
const create = (more: Partial<Params> = {}) => client.responses.create({ ...hi, ...more });

const weather = {
  type: 'function',
  name: 'weather',
  description: 'The weather of a place',
  parameters: { type: 'object', properties: { place: { type: 'string' } } },
  strict: false,
} satisfies OpenAI.Responses.FunctionTool;

async function streamed(more: Partial<Params> = {}): Promise<OpenAI.Responses.ResponseStreamEvent[]> {
  const events: OpenAI.Responses.ResponseStreamEvent[] = [];
  for await (const event of await client.responses.create({ ...hi, ...more, stream: true })) events.push(event);
  return events;
}

/** Types of events without their common beginning, each repetition once. */
const typesOf = (events: readonly { readonly type: string }[]): string[] =>
  events.map(({ type }) => type.replace('response.', '')).filter((type, i, all) => type !== all[i - 1]);

const everything = `<think>\nwhy\n</think>\n\nLook:\n${callText('weather', { place: 'Rome' })}`;

describe('a response', () => {
  it('has items, a status and usage', async () => {
    const response = await create();
    expect(response.output_text).toBe('Hello');
    expect(response).toMatchObject({
      ...{ object: 'response', status: 'completed', model: 'bytes', error: null, incomplete_details: null },
      ...{ store: false, previous_response_id: null, instructions: null, tool_choice: 'auto' },
      id: expect.stringMatching(/^resp-[0-9a-f]{32}$/),
      output: [
        {
          ...{ type: 'message', role: 'assistant', status: 'completed' },
          content: [{ type: 'output_text', text: 'Hello', annotations: [] }],
        },
      ],
      usage: {
        ...{ input_tokens: world.prompt.length, output_tokens: 5, total_tokens: world.prompt.length + 5 },
        input_tokens_details: { cached_tokens: 2 },
      },
    });
  });

  it.each<[string, Partial<Params>, string]>([
    [
      'instructions',
      { instructions: 'Be brief.' },
      '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>',
    ],
    [
      'earlier turns',
      {
        input: [
          { role: 'user', content: 'a' },
          { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'b' }] } as never,
          {
            role: 'user',
            content: [
              { type: 'input_text', text: 'c' },
              { type: 'input_text', text: 'd' },
            ],
          },
        ],
      },
      '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc\nd<|im_end|>',
    ],
    [
      'a developer message as a system message',
      {
        input: [
          { role: 'developer', content: 'D' },
          { role: 'user', content: 'u' },
        ],
      },
      '<|im_start|>system\nD<|im_end|>\n<|im_start|>user\nu<|im_end|>',
    ],
    [
      'reasoning of an earlier turn',
      {
        input: [
          { role: 'user', content: 'a' },
          { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'why' }] },
          { role: 'assistant', content: 'b' },
          { role: 'user', content: 'c' },
        ],
      },
      '<|im_start|>assistant\n<think>\nwhy\n</think>\n\nb<|im_end|>',
    ],
  ])('has %s in its prompt', async (_, more, prompt) => {
    await create(more);
    expect(world.prompt).toContain(prompt);
  });

  it('is sampled with the fields of the request', async () => {
    await create({ temperature: 0.5, top_p: 0.9, max_output_tokens: 9 });
    expect(world.request).toMatchObject({ maxTokens: 9, sampling: { temperature: 0.5, topP: 0.9 } });
  });

  it('is incomplete where its output is cut', async () => {
    world.outputs('Hello', 'length');
    const response = await create({ max_output_tokens: 3 });
    expect(response).toMatchObject({
      ...{ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' }, output_text: 'Hel' },
      output: [{ status: 'incomplete' }],
    });
  });

  it('ends with the context where its limit exceeds what the context leaves', async () => {
    await create({ max_output_tokens: 100_000 });
    expect(world.request.maxTokens).toBe(4000 - world.request.prompt.length);
  });

  it('has reasoning as an item of its own', async () => {
    world.outputs('<think>\nwhy\n</think>\n\nHello');
    const { output, output_text, usage } = await create({ reasoning: { effort: 'low', summary: 'auto' } });
    expect(usage?.output_tokens_details.reasoning_tokens).toBe((usage?.output_tokens ?? 0) - 'Hello'.length);
    expect(output).toMatchObject([
      { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: expect.stringContaining('why') }] },
      { type: 'message' },
    ]);
    expect(output_text).toBe('Hello');
  });

  it('follows the schema of text.format', async () => {
    const schema = { type: 'object', properties: { n: { type: 'integer' } } };
    const format = { type: 'json_schema' as const, name: 'out', schema, strict: true };
    expect((await create({ text: { format } })).text?.format).toMatchObject({ type: 'json_schema', name: 'out' });
    expect(world.request.grammar?.text).toContain(JSON.stringify(schema));
    await create({ text: { format: { type: 'json_object' } } });
    expect(world.request.grammar?.text).toContain('{"type":"object"}');
    const wrong = { ...format, schema: { type: 'nope' } };
    await expect(create({ text: { format: wrong } })).rejects.toMatchObject({
      status: 400,
      param: 'text.format.schema',
    });
  });

  it('returns metadata, and accepts fields without effect', async () => {
    const neutral = { user: 'u', service_tier: 'auto', truncation: 'disabled', prompt_cache_key: 'k' } as const;
    const include = ['reasoning.encrypted_content' as const];
    const prompt_cache_options = { ttl: '30m' } as const;
    const { metadata } = await create({ ...neutral, include, prompt_cache_options, metadata: { a: 'b' } });
    expect(metadata).toEqual({ a: 'b' });
  });
});

it('prompt_cache_options.ttl pins the prompt, and the next turn replaces it', async () => {
  const prompt_cache_options = { ttl: '30m' } as const;
  await create({ prompt_cache_options });
  expect(world.pinned).toEqual([[1800, world.prompt]]);
  const input = [{ role: 'user', content: 'hi' } as const, { role: 'assistant', content: 'Hello' } as const];
  await create({ prompt_cache_options, input: [...input, { role: 'user', content: 'more' }] });
  expect(world.pinned.length).toBeGreaterThan(0);
  expect(world.pinned.at(-1)).toEqual([1800, world.prompt]);
  await create({ prompt_cache_options: { mode: 'explicit' } });
  expect(world.pinned).toHaveLength(1);
});

describe('tools', () => {
  it('are called', async () => {
    world.outputs(callText('weather', { place: 'Rome' }));
    const { output } = await create({ tools: [weather] });
    expect(output).toMatchObject([
      { type: 'function_call', call_id: expect.stringMatching(/./), name: 'weather', status: 'completed' },
    ]);
    expect(output.map((item) => (item.type === 'function_call' ? JSON.parse(item.arguments) : item))).toEqual([
      { place: 'Rome' },
    ]);
    expect(world.prompt).toContain('"name": "weather"');
  });

  it('make a round trip: the items of a response and the result are in the next prompt', async () => {
    world.outputs(everything);
    const { output } = await create({ tools: [weather] });
    const call = output.find((item) => item.type === 'function_call');
    world.outputs('Sunny');
    const answer = await create({
      tools: [weather],
      input: [
        { role: 'user', content: 'hi' },
        ...(output as OpenAI.Responses.ResponseInputItem[]),
        { type: 'function_call_output', call_id: call?.call_id ?? '', output: '21 degrees' },
      ],
    });
    expect(answer.output_text).toBe('Sunny');
    const at = [
      '<think>\nwhy',
      'Look:',
      '{"name": "weather", "arguments": {"place": "Rome"}}',
      '<tool_response>\n21 degrees',
    ];
    const places = at.map((text) => world.prompt.indexOf(text));
    expect(places).toEqual([...places].sort((a, b) => a - b));
    expect(places).not.toContain(-1);
    expect(world.prompt.match(/<\|im_start\|>assistant/g)).toHaveLength(2);
  });

  it('may be called several times at once, or once', async () => {
    world.outputs(`${callText('weather', { place: 'A' })}\n${callText('weather', { place: 'B' })}`);
    expect((await create({ tools: [weather] })).output).toHaveLength(2);
    expect((await create({ tools: [weather], parallel_tool_calls: false })).output).toHaveLength(1);
  });

  it.each(['required', { type: 'function', name: 'weather' }] as const)(
    'are required by the choice %j',
    async (choice) => {
      world.outputs(callText('weather', { place: 'Rome' }));
      const { output } = await create({ tools: [weather], tool_choice: choice });
      expect(output).toMatchObject([{ type: 'function_call' }]);
      expect(world.request.grammar?.text).toContain('weather');
    },
  );

  it('are text where the choice is none', async () => {
    expect((await create({ tools: [weather], tool_choice: 'none' })).output_text).toBe('Hello');
  });
});

describe('a stream', () => {
  it('has the events of the protocol in their order, numbered', async () => {
    const events = await streamed();
    expect(typesOf(events)).toEqual([
      ...['created', 'in_progress', 'output_item.added', 'content_part.added', 'output_text.delta'],
      ...['output_text.done', 'content_part.done', 'output_item.done', 'completed'],
    ]);
    expect(events.map(({ sequence_number }) => sequence_number)).toEqual(events.map((_, i) => i));
    expect(events[0]).toMatchObject({ response: { status: 'in_progress', output: [], usage: null } });
    expect(events.at(-1)).toMatchObject({ response: { status: 'completed', usage: { output_tokens: 5 } } });
  });

  it('ends each item before it adds the next one', async () => {
    world.outputs(everything);
    const items = (await streamed({ tools: [weather] })).flatMap((event) =>
      event.type === 'response.output_item.added' || event.type === 'response.output_item.done'
        ? [`${event.output_index} ${event.item.type} ${event.type.split('.').at(-1)}`]
        : [],
    );
    expect(items).toEqual(
      ['0 reasoning', '1 message', '2 function_call'].flatMap((item) => [`${item} added`, `${item} done`]),
    );
  });

  it('sends reasoning and arguments as they arrive', async () => {
    world.outputs(everything);
    const events = await streamed({ tools: [weather] });
    const deltas = (kind: string) =>
      events.map((event) => (event.type === kind && 'delta' in event ? event.delta : '')).join('');
    expect(deltas('response.reasoning_text.delta')).toContain('why');
    expect(JSON.parse(deltas('response.function_call_arguments.delta'))).toEqual({ place: 'Rome' });
    expect(events.find(({ type }) => type === 'response.function_call_arguments.done')).toMatchObject({
      name: 'weather',
    });
  });

  it.each([
    ['text', 'Hello'],
    ['reasoning, text and a call', everything],
  ])('gives the items of a response without a stream: %s', async (_, text) => {
    world.outputs(text);
    const whole = await create({ tools: [weather] });
    const final = await client.responses.stream({ ...hi, tools: [weather] }).finalResponse();
    const [a, b] = [whole, final].map(({ output, status }) =>
      JSON.stringify([status, output], (key, value) =>
        key === 'id' || key === 'call_id' || key === 'parsed_arguments' || key === 'parsed' ? undefined : value,
      ),
    );
    expect(b).toBe(a);
  });

  it('of an output that is cut ends with response.incomplete', async () => {
    world.outputs('Hello', 'length');
    const last = (await streamed({ max_output_tokens: 3 })).at(-1);
    expect(last).toMatchObject({ type: 'response.incomplete', response: { status: 'incomplete' } });
  });

  it('reports a failure on its way as response.failed', async () => {
    const failed = { kind: 'failed', code: 'ENGINE_FAILED', message: 'Cannot go on', retryAfterMs: undefined } as const;
    world.plays([accepted, started(0), tokens([65]), failed]);
    expect((await streamed()).at(-1)).toMatchObject({
      ...{ type: 'response.failed', response: { status: 'failed', error: { message: 'Cannot go on' } } },
    });
  });
});

describe('an error', () => {
  const user = (part: object): Partial<Params> => ({ input: [{ role: 'user', content: [part] }] }) as never;

  it.each<[string, Partial<Params>, number, string, RegExp]>([
    ['an unknown model', { model: 'nope' }, 404, 'model', /Cannot find model 'nope'/],
    ['a range', { temperature: 3 }, 400, 'temperature', /must be at most 2, got 3/],
    [
      'an image',
      user({ type: 'input_image', image_url: 'x' }),
      400,
      'input.0.content.0.type',
      /part of the type input_text/,
    ],
    [
      'a reference to an item',
      { input: [{ type: 'item_reference', id: 'x' }] },
      400,
      'input.0.type',
      /stores no items/,
    ],
    ['a tool of the server', { tools: [{ type: 'web_search' }] }, 400, 'tools.0.type', /tool of the client/],
    ['an unknown field', { frequency: 1 } as never, 400, 'frequency', /unknown field/],
    [
      'previous_response_id',
      { previous_response_id: 'resp-1' },
      400,
      'previous_response_id',
      /send the whole conversation as 'input'/,
    ],
    ['a conversation', { conversation: 'c' }, 400, 'conversation', /stores none/],
    ['store', { store: true }, 400, 'store', /stores none: send false/],
    ['background', { background: true }, 400, 'background', /send false/],
    ['truncation', { truncation: 'auto' }, 400, 'truncation', /is not supported yet/],
    ['a long prompt', { input: 'x'.repeat(4001) }, 400, 'input', /the context is 4000 tokens/],
  ])('names %s', async (_, more, status, param, message) => {
    const error = await create(more).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(OpenAI.APIError);
    expect(error).toMatchObject({ status, param, message: expect.stringMatching(message) });
  });

  it('of an overload is a RateLimitError', async () => {
    world.plays([{ kind: 'failed', code: 'KV_OVERLOADED', message: 'Cannot admit request', retryAfterMs: 2000 }]);
    await expect(create()).rejects.toBeInstanceOf(OpenAI.RateLimitError);
  });

  it('of a wrong key is an AuthenticationError', async () => {
    const wrong = new OpenAI({ baseURL: `${world.url}/v1`, apiKey: 'wrong', maxRetries: 0 });
    await expect(wrong.responses.create(hi)).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
  });

  it('of a stored response is a 404', async () => {
    await expect(client.responses.retrieve('resp-1')).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  });
});

describe('input_tokens', () => {
  it('counts the prompt of a response', async () => {
    const fields = { model: 'bytes', input: 'hi', instructions: 'Be brief.', tools: [weather] };
    const counted = await client.responses.inputTokens.count(fields);
    await create(fields);
    expect(counted).toEqual({ object: 'response.input_tokens', input_tokens: world.prompt.length });
  });

  it('refuses fields that need stored responses', async () => {
    const counted = client.responses.inputTokens.count({ model: 'bytes', input: 'hi', previous_response_id: 'resp-1' });
    await expect(counted).rejects.toMatchObject({ status: 400, param: 'previous_response_id' });
  });
});

describe('a cancel', () => {
  const patience = { timeout: 60_000 };
  const cancels = async (act: () => Promise<void>): Promise<void> => {
    world.plays([accepted, started(0), tokens([65])]);
    const before = world.port.cancels;
    await act();
    await expect.poll(() => world.port.cancels, patience).toBe(before + 1);
  };

  it('of a stream ends its request', () =>
    cancels(async () => {
      const stream = await client.responses.create({ ...hi, stream: true });
      for await (const { type } of stream) if (type === 'response.output_text.delta') break;
    }));

  it('of a response without a stream ends its request', () =>
    cancels(async () => {
      const aborting = new AbortController();
      const pending = client.responses.create(hi, { signal: aborting.signal });
      const requests = world.port.requests.length;
      await expect.poll(() => world.port.requests.length, patience).toBe(requests + 1);
      aborting.abort();
      await expect(pending).rejects.toBeInstanceOf(OpenAI.APIUserAbortError);
    }));
});
