// Tools and reasoning in chats: what the port receives, and whole and streamed answers as OpenAI's clients read them.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { GrammarCompiler } from '../../../src/core/protocol/grammar.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { ChatTemplate } from '../../../src/text/template/chat-template.ts';
import type { Tokenizer } from '../../../src/text/tokenizer.ts';
import { decodeUtf8 } from '../../../src/text/utf8.ts';
import { type ToolTemplateName, toolTemplates } from '../../text/tools/templates.ts';
import { accepted, finished, type Script, ScriptedPort, scriptedLogprobs, started, tokens } from '../scripted-port.ts';
import { events, gateway, gatewayOptions } from '../world.ts';
import { byteTokenizer } from './byte-tokenizer.ts';

const path = '/v1/chat/completions';
const user = { role: 'user', content: 'Weather in Oslo?' };
const weather = {
  type: 'function' as const,
  function: {
    name: 'get_weather',
    description: 'The weather of a place.',
    parameters: { type: 'object', properties: { place: { type: 'string' } }, required: ['place'] },
  },
};
const callText = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Oslo"}}\n</tool_call>';

/** Bytes, and markers that are special tokens, as Mistral's. */
const markers = new Map([
  ['[TOOL_CALLS]', 257],
  ['<|tool_call|>', 258],
  ['<|/tool_call|>', 259],
]);
const spelled = new Map([...markers].map(([text, id]) => [id, new TextEncoder().encode(text)]));
const tokenizer: Tokenizer = {
  ...byteTokenizer,
  vocabSize: 260,
  specialIds: new Set([256, ...markers.values()]),
  encode: (text) =>
    text
      .split(/(\[TOOL_CALLS\]|<\|\/?tool_call\|>)/)
      .flatMap((part) => markers.get(part) ?? [...new TextEncoder().encode(part)]),
  tokenBytes: (id) => spelled.get(id) ?? byteTokenizer.tokenBytes(id),
  isSpecial: (id) => id >= 256,
};

const promptOf = ({ prompt }: GenerationRequest): string => decodeUtf8(Uint8Array.from(prompt));

/** A gateway that answers a prompt with the text that `answer` gives, some tokens at once. */
function server(name: ToolTemplateName | ChatTemplate, answer: (prompt: string) => string, size = 3, more = {}) {
  const script: Script = (request) => {
    const ids = tokenizer.encode(answer(promptOf(request)));
    const groups = Array.from({ length: Math.ceil(ids.length / size) }, (_, i) => ids.slice(i * size, (i + 1) * size));
    const hasLogprobs = request.sampling.topLogprobs !== undefined;
    return [
      accepted,
      started(0),
      ...groups.map((group) => tokens(group, hasLogprobs ? scriptedLogprobs(group, 0) : undefined)),
      tokens([256], hasLogprobs ? scriptedLogprobs([256], 0) : undefined),
      finished('stop'),
    ];
  };
  const { model } = gatewayOptions(new ScriptedPort(script));
  const chatTemplate = typeof name === 'string' ? new ChatTemplate(toolTemplates[name]) : name;
  return gateway(script, {
    model: {
      ...model,
      vocabSize: 260,
      contextTokens: 100_000,
      tokenizer,
      chatTemplate,
      bosToken: '<s>',
      eosToken: '</s>',
    },
    encode: async (text: string) => Int32Array.from(tokenizer.encode(text)),
    bodyBytesMax: 1 << 20,
    ...more,
  });
}

interface Message {
  readonly content: string | null;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly { id: string; type: string; function: { name: string; arguments: string } }[];
}
interface ChoiceBody {
  readonly message: Message;
  readonly finish_reason: string;
  readonly token_ids?: readonly number[];
  readonly logprobs: { readonly content: readonly { readonly token: string }[] } | null;
}
type Server = ReturnType<typeof server>;

async function choicesOf({ post }: Server, more: object): Promise<ChoiceBody[]> {
  const response = await post(path, { model: 'bytes', messages: [user], ...more });
  const body = (await response.json()) as { choices: ChoiceBody[] };
  expect(response.status, JSON.stringify(body)).toBe(200);
  return body.choices;
}

async function refusal({ post }: Server, more: object): Promise<{ message: string; param: string; code: string }> {
  const response = await post(path, { model: 'bytes', messages: [user], ...more });
  expect(response.status).toBe(400);
  return ((await response.json()) as { error: { message: string; param: string; code: string } }).error;
}

interface ToolDelta {
  readonly index: number;
  readonly id?: string;
  readonly type?: string;
  readonly function: { readonly name?: string; readonly arguments: string };
}
interface ChunkChoice {
  readonly index: number;
  readonly delta: { role?: string; content?: string; reasoning_content?: string; tool_calls?: ToolDelta[] };
  readonly finish_reason: string | null;
  readonly logprobs?: { readonly content: readonly { readonly token: string }[] };
  readonly token_ids?: readonly number[];
}

async function chunksOf({ post }: Server, more: object): Promise<ChunkChoice[]> {
  const response = await post(path, { model: 'bytes', messages: [user], stream: true, ...more });
  const list = await events(response);
  expect(list.at(-1)).toBe('done');
  return list.slice(0, -1).flatMap((chunk) => (chunk as { choices: ChunkChoice[] }).choices);
}

const outputs: Readonly<Record<ToolTemplateName, string>> = {
  hermes: callText,
  qwen3: callText,
  llama3: '{"name": "get_weather", "parameters": {"place": "Oslo"}}',
  mistralNemo: '[TOOL_CALLS][{"name": "get_weather", "arguments": {"place": "Oslo"}, "id": "abcdefghi"}]',
  mistralSmall: '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"place": "Oslo"}',
  qwen3Coder: '<tool_call>\n<function=get_weather>\n<parameter=place>\nOslo\n</parameter>\n</function>\n</tool_call>',
  phi4Mini: '<|tool_call|>[{"name": "get_weather", "arguments": {"place": "Oslo"}}]<|/tool_call|>',
  deepSeek:
    'I look.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"place": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
  kimi: '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"place": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
  deepSeekV31:
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"place": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
  pythonic: "[get_weather(place='Oslo')]",
  glm: '<tool_call>get_weather\n<arg_key>place</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>',
};

describe.each(Object.keys(outputs) as ToolTemplateName[])('a call in the format of %s', (name) => {
  it('is a tool call of the answer, whole and streamed, and its result reaches the prompt', async () => {
    const world = server(name, (prompt) => (prompt.includes('7 degrees') ? 'Mild.' : outputs[name]));
    const [choice] = await choicesOf(world, { tools: [weather] });
    expect(promptOf(world.port.requests[0] as GenerationRequest)).toContain('The weather of a place.');
    expect(choice?.finish_reason).toBe('tool_calls');
    expect(choice?.message.content).toBeNull();
    const [call] = choice?.message.tool_calls ?? [];
    expect(call).toMatchObject({ type: 'function', function: { name: 'get_weather', arguments: '{"place": "Oslo"}' } });
    expect(call?.id).toMatch(name.startsWith('mistral') ? /^[a-zA-Z0-9]{9}$/ : /^call_[a-zA-Z0-9]{24}$/);

    const chunks = await chunksOf(world, { tools: [weather] });
    const pieces = chunks.flatMap(({ delta }) => delta.tool_calls ?? []);
    expect(pieces[0]).toMatchObject({ index: 0, type: 'function', function: { name: 'get_weather', arguments: '' } });
    expect(pieces.slice(1).every((piece) => piece.id === undefined && piece.function.name === undefined)).toBe(true);
    expect(pieces.map((piece) => piece.function.arguments).join('')).toBe('{"place": "Oslo"}');
    // A Python value is converted once it is whole.
    expect(pieces.length).toBeGreaterThan(name === 'pythonic' ? 1 : 3);
    expect(chunks.map(({ delta }) => delta.content ?? '').join('')).toBe('');
    expect(chunks.at(-1)).toMatchObject({ delta: {}, finish_reason: 'tool_calls' });

    const messages = [user, choice?.message, { role: 'tool', tool_call_id: call?.id, content: '7 degrees' }];
    const [second] = await choicesOf(world, { tools: [weather], messages });
    // DeepSeek's prompt begins the reasoning, and this answer never ends it.
    expect([second?.message.content, second?.message.reasoning_content]).toContain('Mild.');
    expect(second?.finish_reason).toBe('stop');
    const prompt = promptOf(world.port.requests.at(-1) as GenerationRequest);
    expect(prompt).toMatch(/"place": ?"Oslo"|>\n?Oslo|place="Oslo"/);
    expect(prompt.indexOf('7 degrees')).toBeGreaterThan(prompt.lastIndexOf('get_weather'));
  });
});

describe('answers with calls', () => {
  const both = `I look.\n${callText}\n${callText.replace('Oslo', 'Rome')}`;

  it('have text, log-probabilities of the text, and all token ids', async () => {
    const world = server('hermes', () => both);
    const more = { tools: [weather], logprobs: true, return_token_ids: true, n: 2 };
    const whole = await choicesOf(world, more);
    const chunks = await chunksOf(world, more);
    expect(whole).toHaveLength(2);
    for (const [index, { message, logprobs, token_ids }] of whole.entries()) {
      expect(message.content).toBe('I look.');
      expect(message.tool_calls?.map((call) => call.function.arguments)).toEqual([
        '{"place": "Oslo"}',
        '{"place": "Rome"}',
      ]);
      expect(logprobs?.content.map(({ token }) => token).join('')).toBe('I look.');
      expect(token_ids).toEqual([...tokenizer.encode(both), 256]);
      const own = chunks.filter((chunk) => chunk.index === index);
      expect(own.flatMap((chunk) => chunk.token_ids ?? [])).toEqual(token_ids);
      expect(
        own
          .flatMap((chunk) => chunk.logprobs?.content ?? [])
          .map(({ token }) => token)
          .join(''),
      ).toBe('I look.');
      expect(own.flatMap(({ delta }) => delta.tool_calls ?? []).map((piece) => piece.index)).toEqual(
        expect.arrayContaining([0, 1]),
      );
    }
  });

  it('end after the first call with parallel_tool_calls false', async () => {
    const world = server('hermes', () => both);
    const [choice] = await choicesOf(world, { tools: [weather], parallel_tool_calls: false });
    expect(choice?.message.tool_calls).toHaveLength(1);
    expect(choice?.finish_reason).toBe('tool_calls');
    expect(world.port.cancelled).toHaveLength(1);
  });

  it('end before a stop string, and report length where they are cut off', async () => {
    const [stopped] = await choicesOf(
      server('hermes', () => both),
      { tools: [weather], stop: 'Rome' },
    );
    expect(stopped?.message.tool_calls?.[1]?.function.arguments).toBe('{"place": "');
    expect(stopped?.finish_reason).toBe('tool_calls');
    const text = await choicesOf(
      server('hermes', () => 'a <tool_'),
      { tools: [weather] },
    );
    expect(text[0]).toMatchObject({ message: { content: 'a <tool_' }, finish_reason: 'stop' });
  });

  it('have special tokens as markers, which are no text', async () => {
    const world = server('mistralNemo', () => 'See [TOOL_CALLS] here', 1);
    expect((await choicesOf(world, { tools: [weather] }))[0]?.message.content).toBe('See  here');
    expect((await choicesOf(world, {}))[0]?.message.content).toBe('See  here');
  });
});

describe('requests with tools', () => {
  it('leave the prompt of a request without them as it is, and write what the client sent, but for strict', async () => {
    const world = server('hermes', () => 'Hi.');
    await choicesOf(world, {
      tools: [
        { ...weather, function: { ...weather.function, strict: false } },
        { type: 'function', function: { name: 'now' } },
      ],
    });
    const prompt = promptOf(world.port.requests[0] as GenerationRequest);
    expect(prompt).toContain(
      `\n{"type": "function", "function": {"name": "get_weather", "description": "The weather of a place.", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}\n`,
    );
    expect(prompt).toContain(
      '{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}',
    );
    await choicesOf(world, { tools: [] });
    expect(promptOf(world.port.requests[1] as GenerationRequest)).not.toContain('tools');
  });

  it('use the template for tools of a model that has one of its own', async () => {
    const { model } = server('hermes', () => callText).options;
    const templates = { chatTemplate: new ChatTemplate('{{ messages[0].content }}'), toolTemplate: model.chatTemplate };
    const world = server('hermes', () => callText, 3, { model: { ...model, ...templates } });
    expect((await choicesOf(world, { tools: [weather] }))[0]?.finish_reason).toBe('tool_calls');
    await choicesOf(world, {});
    expect(promptOf(world.port.requests[1] as GenerationRequest)).toBe('Weather in Oslo?');
  });

  it('take earlier calls with malformed or no arguments, and ids of other servers', async () => {
    const call = (args: string) => ({
      id: 'toolu_01',
      type: 'function',
      function: { name: 'get_weather', arguments: args },
    });
    const messages = [
      user,
      { role: 'assistant', content: null, tool_calls: [call('{bad'), call('')] },
      { role: 'tool', tool_call_id: 'toolu_01', content: 'x' },
    ];
    const hermes = server('hermes', () => 'Hi.');
    await choicesOf(hermes, { messages });
    expect(promptOf(hermes.port.requests[0] as GenerationRequest)).toContain('"arguments": {bad}');
    const mistral = server('mistralNemo', () => 'Hi.');
    await choicesOf(mistral, { messages });
    const ids = promptOf(mistral.port.requests[0] as GenerationRequest).match(/id": "([a-zA-Z0-9]{9})"/g);
    expect(ids).toHaveLength(3);
    expect(new Set(ids?.map((id) => id.replace('call_', ''))).size).toBe(1);
  });

  it('with tool_choice none keep the tools in the prompt where the marker can be banned', async () => {
    const mistral = server('mistralNemo', () => 'Hi.');
    await choicesOf(mistral, { tools: [weather], tool_choice: 'none', logit_bias: { 5: 1 } });
    const [request] = mistral.port.requests;
    expect(request?.sampling.logitBias).toEqual([
      [5, 1],
      [257, -100],
    ]);
    expect(promptOf(request as GenerationRequest)).toContain('get_weather');
    const hermes = server('hermes', () => callText);
    const [choice] = await choicesOf(hermes, { tools: [weather], tool_choice: 'none' });
    expect(promptOf(hermes.port.requests[0] as GenerationRequest)).not.toContain('get_weather');
    expect(choice).toMatchObject({ message: { content: callText }, finish_reason: 'stop' });
  });

  it.each([
    [
      'a template without tools',
      new ChatTemplate('{{ messages[0].content }}'),
      { tools: [weather] },
      'tools',
      'it has no tools',
    ],
    ['a choice without tools', 'hermes', { tool_choice: 'required' }, 'tool_choice', "'tools' is empty"],
    [
      'an unknown choice',
      'hermes',
      { tools: [weather], tool_choice: { type: 'function', function: { name: 'f' } } },
      'tool_choice',
      "'f', which is not among 'tools'",
    ],
    [
      'a required call without a compiler',
      'hermes',
      { tools: [weather], tool_choice: 'required' },
      'tools',
      'not supported by this server',
    ],
    [
      'a call of a user',
      'hermes',
      { messages: [{ ...user, tool_calls: [{ id: 'a', function: { name: 'f', arguments: '' } }] }] },
      'messages.0.tool_calls',
      'assistant',
    ],
    [
      'a result without its call',
      'hermes',
      { messages: [{ role: 'tool', content: 'x' }] },
      'messages.0.tool_call_id',
      'is missing',
    ],
    [
      'several calls where the template has one',
      'llama3',
      {
        messages: [
          user,
          { role: 'assistant', tool_calls: ['a', 'b'].map((id) => ({ id, function: { name: 'f', arguments: '{}' } })) },
        ],
      },
      'messages',
      'one call at once',
    ],
  ] as const)('are refused for %s', async (_, name, more, param, message) => {
    const error = await refusal(
      server(name, () => 'Hi.'),
      more,
    );
    expect(error).toMatchObject({ param, message: expect.stringContaining(message) });
  });
});

describe('grammars of tools', () => {
  const compiler = (): GrammarCompiler & { texts: string[] } => {
    const texts: string[] = [];
    return { texts, compile: async ({ text }) => void texts.push(text) };
  };
  const strict = { ...weather, function: { ...weather.function, strict: true } };
  const formatOf = (request: GenerationRequest | undefined): Record<string, unknown> | undefined =>
    request?.grammar === undefined
      ? undefined
      : (JSON.parse(request.grammar.text) as { format: Record<string, unknown> }).format;

  it('constrain required and named calls from the beginning, and strict ones from their marker', async () => {
    const world = server('hermes', () => callText, 3, { grammars: compiler() });
    const now = { type: 'function', function: { name: 'now' } };
    const begins = ['get_weather', 'now'].map((name) => `<tool_call>\n{"name": "${name}", "arguments": `);
    const tools = [weather, now];
    await choicesOf(world, { tools, tool_choice: 'required' });
    await choicesOf(world, { tools, tool_choice: { type: 'function', function: { name: 'now' } } });
    await choicesOf(world, { tools });
    await choicesOf(world, { tools: [strict, now] });
    const [required, named, free, lazy] = world.port.requests.map(formatOf);
    expect(required).toMatchObject({
      type: 'tags_with_separator',
      tags: begins.map((begin) => ({ begin })),
      at_least_one: true,
    });
    expect(named).toMatchObject({ type: 'tag', begin: begins[1], end: '}\n</tool_call>' });
    expect(free).toBeUndefined();
    expect(lazy).toMatchObject({
      type: 'triggered_tags',
      triggers: ['<tool_call>'],
      tags: begins.map((begin) => ({ begin })),
    });
  });

  it('allow a response format or a call, and reasoning before them', async () => {
    const world = server('qwen3', () => '{}', 3, { grammars: compiler() });
    const response_format = { type: 'json_object' };
    await choicesOf(world, { tools: [weather], response_format });
    await choicesOf(world, { response_format });
    const [both, alone] = world.port.requests.map(formatOf);
    const json = { type: 'json_schema', json_schema: { type: 'object' } };
    const reasoning = { type: 'tag', begin: '<think>', end: '</think>' };
    expect(alone).toMatchObject({ type: 'or', elements: [json, { elements: [reasoning, { type: 'regex' }, json] }] });
    expect(both).toMatchObject({
      type: 'or',
      elements: [{ type: 'or', elements: [{ tags: [{}] }, json] }, { type: 'sequence' }],
    });
    // A structural tag may be its format alone.
    const structured_outputs = { structural_tag: '{"type":"regex","pattern":"a"}' };
    await choicesOf(world, { structured_outputs });
    expect(formatOf(world.port.requests.at(-1))).toMatchObject({
      elements: [{ type: 'regex', pattern: 'a' }, {}],
    });
    const error = await refusal(world, { tools: [weather], tool_choice: 'required', response_format });
    expect(error).toMatchObject({ param: 'tool_choice', message: expect.stringContaining('send one of them') });
  });

  it('refuse a strict schema that no grammar expresses, and free the arguments of other tools', async () => {
    const parameters = { type: 'object', properties: { n: { type: 'integer', multipleOf: 2 } } };
    const odd = { type: 'function', function: { name: 'odd', parameters } };
    const world = server('hermes', () => callText, 3, { grammars: compiler() });
    await choicesOf(world, { tools: [odd], tool_choice: 'required' });
    expect(formatOf(world.port.requests[0])).toMatchObject({
      tags: [{ content: { json_schema: { type: 'object' } } }],
    });
    const error = await refusal(world, { tools: [{ ...odd, function: { ...odd.function, strict: true } }] });
    expect(error).toMatchObject({
      param: 'tools.0.function.parameters',
      message: expect.stringContaining('.properties.n.multipleOf'),
    });
  });
});

describe('reasoning', () => {
  const output = '<think>\nOslo is north.\n</think>\n\nCold.';

  it('is reasoning_content, whole and streamed, before the text', async () => {
    const world = server('qwen3', () => output);
    const [choice] = await choicesOf(world, { logprobs: true });
    expect(choice?.message).toEqual({
      role: 'assistant',
      content: 'Cold.',
      refusal: null,
      reasoning_content: 'Oslo is north.',
    });
    expect(choice?.logprobs?.content.map(({ token }) => token).join('')).toBe('Cold.<eos>');
    const deltas = (await chunksOf(world, {})).map(({ delta }) => delta);
    expect(deltas.map((delta) => delta.reasoning_content ?? '').join('')).toBe('Oslo is north.');
    expect(deltas.map((delta) => delta.content ?? '').join('')).toBe('Cold.');
    const first = deltas.findIndex((delta) => (delta.content ?? '') !== '');
    expect(deltas.slice(first).every((delta) => delta.reasoning_content === undefined)).toBe(true);
    const { usage } = (await (await world.post(path, { model: 'bytes', messages: [user] })).json()) as {
      usage: object;
    };
    const reasoning_tokens = output.indexOf('Cold.');
    expect(usage).toMatchObject({ completion_tokens_details: { reasoning_tokens } });
  });

  it('begins in the prompt where the template begins it there', async () => {
    const [choice] = await choicesOf(
      server('deepSeek', () => 'why\n</think>\n\nSo.'),
      {},
    );
    expect(choice?.message).toMatchObject({ reasoning_content: 'why', content: 'So.' });
    const messages = [user, { role: 'assistant', content: '<think>\nfirst' }];
    const more = { messages, continue_final_message: true };
    const [continued] = await choicesOf(
      server('hermes', () => ' then</think>Yes'),
      more,
    );
    expect(continued?.message.content).toBe(' then</think>Yes');
  });

  it('is text with reasoning_format none, and off with the effort none', async () => {
    const world = server('qwen3', () => output);
    expect((await choicesOf(world, { reasoning_format: 'none' }))[0]?.message).toMatchObject({ content: output });
    await choicesOf(world, { reasoning_effort: 'none' });
    expect(promptOf(world.port.requests.at(-1) as GenerationRequest)).toMatch(/<think>\n\n<\/think>\n\n$/);
  });
});

describe('clients', () => {
  const answers = (prompt: string): string =>
    prompt.includes('7 degrees') ? 'It is 7 degrees.' : `<think>\nI must look.\n</think>\n\n${callText}`;
  const asFetch =
    ({ app }: Server): typeof fetch =>
    async (input, init) =>
      app.request(input as string, init);

  it('openai: runTools calls the function and returns the last answer, streamed and not', async () => {
    const world = server('qwen3', answers);
    const client = new OpenAI({ baseURL: 'http://localhost/v1', apiKey: 'x', fetch: asFetch(world), maxRetries: 0 });
    const places: string[] = [];
    const tools = [
      {
        type: 'function' as const,
        function: {
          ...weather.function,
          parse: (text: string) => JSON.parse(text) as { place: string },
          function: ({ place }: { place: string }) => {
            places.push(place);
            return '7 degrees';
          },
        },
      },
    ];
    const messages = [{ role: 'user' as const, content: 'Weather in Oslo?' }];
    const runner = client.chat.completions.runTools({ model: 'bytes', messages, tools });
    expect(await runner.finalContent()).toBe('It is 7 degrees.');
    const streaming = client.chat.completions.runTools({ model: 'bytes', messages, tools, stream: true });
    let text = '';
    for await (const chunk of streaming) text += chunk.choices[0]?.delta.content ?? '';
    expect(text).toBe('It is 7 degrees.');
    expect(places).toEqual(['Oslo', 'Oslo']);
    expect(world.port.requests).toHaveLength(4);
  });

  it('AI SDK: a tool runs, and reasoning is a part of its own, streamed and not', async () => {
    const world = server('qwen3', answers);
    const provider = createOpenAICompatible({ name: 'kvasir', baseURL: 'http://localhost/v1', fetch: asFetch(world) });
    const places: string[] = [];
    const options = {
      model: provider('bytes'),
      prompt: 'Weather in Oslo?',
      stopWhen: stepCountIs(3),
      tools: {
        get_weather: tool({
          description: 'The weather of a place.',
          inputSchema: z.object({ place: z.string() }),
          execute: async ({ place }) => {
            places.push(place);
            return '7 degrees';
          },
        }),
      },
    };
    const whole = await generateText(options);
    expect(whole.text).toBe('It is 7 degrees.');
    expect(whole.steps[0]).toMatchObject({ finishReason: 'tool-calls', reasoningText: 'I must look.' });
    const streamed = streamText(options);
    const parts: string[] = [];
    for await (const part of streamed.fullStream) parts.push(part.type);
    expect(await streamed.text).toBe('It is 7 degrees.');
    expect(parts).toEqual(expect.arrayContaining(['reasoning-delta', 'tool-input-delta', 'tool-call', 'tool-result']));
    expect(places).toEqual(['Oslo', 'Oslo']);
  });
});
