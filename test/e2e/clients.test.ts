// Common clients, unmodified, against a real server of the embedded model.
import { fileURLToPath } from 'node:url';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { type RunningServer, startServer } from './server.ts';

const model = 'kvasir-tiny-q8_0';
const recall = 'Remember: the code for zebra is 4821. The code for apple is 9077. What is the code for zebra?';
let server: RunningServer;

beforeAll(async () => {
  // The model's own template, and tools in Hermes' format.
  server = await startServer(['--chat-template', fileURLToPath(new URL('./tool-template.jinja', import.meta.url))]);
});
afterAll(() => server.stop());

describe('openai client', () => {
  const client = (): OpenAI => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'unused', maxRetries: 0 });

  it('lists the model', async () => {
    const ids = (await client().models.list()).data.map(({ id }) => id);
    expect(ids).toEqual([model]);
  });

  it('chats, and recalls a fact of the prompt', async () => {
    const answer = await client().chat.completions.create({
      model,
      temperature: 0,
      messages: [{ role: 'user', content: recall }],
    });
    expect(answer.choices[0]?.message.content).toContain('4821');
    expect(answer.choices[0]?.finish_reason).toBe('stop');
    expect(answer.usage?.completion_tokens).toBeGreaterThan(3);
  });

  it('streams the same text, with usage at the end', async () => {
    const whole = await client().chat.completions.create({
      model,
      temperature: 0,
      messages: [{ role: 'user', content: recall }],
    });
    const stream = await client().chat.completions.create({
      model,
      temperature: 0,
      messages: [{ role: 'user', content: recall }],
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = '';
    let usage: OpenAI.CompletionUsage | null | undefined;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage;
    }
    expect(text).toBe(whole.choices[0]?.message.content);
    expect(usage).toMatchObject({
      completion_tokens: whole.usage?.completion_tokens,
      prompt_tokens: whole.usage?.prompt_tokens,
    });
    // The same prompt again: its whole blocks come from the cache.
    expect(usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThanOrEqual(32);
  });

  it('gives log-probabilities that sum to less than one', async () => {
    const answer = await client().chat.completions.create({
      model,
      messages: [{ role: 'user', content: 'Hello!' }],
      temperature: 0,
      logprobs: true,
      top_logprobs: 5,
    });
    for (const { logprob, top_logprobs } of answer.choices[0]?.logprobs?.content ?? []) {
      expect(logprob).toBeCloseTo(top_logprobs[0]?.logprob ?? Number.NaN, 5);
      const total = top_logprobs.reduce((sum, entry) => sum + Math.exp(entry.logprob), 0);
      expect(total).toBeLessThanOrEqual(1 + 1e-5);
    }
    expect(answer.choices[0]?.logprobs?.content?.length).toBe(answer.usage?.completion_tokens);
  });

  it('parses an answer by a zod schema, and keeps structured and free answers apart in one batch', async () => {
    const animal = z.object({
      name: z.enum(['fox', 'owl']),
      legs: z.number().int().min(0).max(8),
      nickname: z.string().max(6).nullable(),
    });
    const messages = [{ role: 'user' as const, content: 'An animal!' }];
    const free = { model, messages, max_tokens: 24, seed: 5, stop: ['}'] };
    const alone = await client().chat.completions.create(free);
    const [parsed, choice, regex, beside] = await Promise.all([
      client().chat.completions.parse({
        ...{ model, messages, seed: 7, n: 2, max_tokens: 120 },
        response_format: zodResponseFormat(animal, 'animal'),
      }),
      client().chat.completions.create({
        ...{ model, messages, structured_outputs: { choice: ['red apple', 'pear'] } },
      } as OpenAI.ChatCompletionCreateParamsNonStreaming),
      client().completions.create({
        ...{ model, prompt: 'x', max_tokens: 4, structured_outputs: { regex: '[0-9]{40}' } },
      } as OpenAI.CompletionCreateParamsNonStreaming),
      client().chat.completions.create(free),
    ]);
    expect(parsed.choices).toHaveLength(2);
    for (const { message, finish_reason } of parsed.choices) {
      expect(finish_reason).toBe('stop');
      expect(animal.parse(message.parsed)).toEqual(JSON.parse(message.content ?? ''));
    }
    expect(['red apple', 'pear']).toContain(choice.choices[0]?.message.content);
    expect(regex.choices[0]?.text).toMatch(/^[0-9]{1,39}$/);
    expect(regex.choices[0]?.finish_reason).toBe('length');
    expect(beside.choices[0]?.message.content).toBe(alone.choices[0]?.message.content);
    const bad = { type: 'json_schema', json_schema: { name: 'a', schema: { pattern: '(', type: 'string' } } } as const;
    await expect(client().chat.completions.create({ ...free, response_format: bad })).rejects.toMatchObject({
      status: 400,
      param: 'response_format.json_schema.schema',
      message: expect.stringContaining('Regex parsing error'),
    });
  });

  it('gets tool calls that follow the schema, and runs their functions', async () => {
    const weather = z.strictObject({ place: z.enum(['Oslo', 'Rome']), days: z.int().min(1).max(9) });
    const parameters = z.toJSONSchema(weather) as Record<string, unknown>;
    const now = {
      type: 'function' as const,
      function: { name: 'now', parameters: { type: 'object', properties: {} } },
    };
    const tools = [{ type: 'function' as const, function: { name: 'get_weather', strict: true, parameters } }, now];
    const messages = [{ role: 'user' as const, content: 'Is it cold in Oslo?' }];
    const asked = { model, messages, tools, max_tokens: 200, seed: 5 };
    const [required, named, single] = await Promise.all([
      client().chat.completions.create({ ...asked, tool_choice: 'required', n: 2, parallel_tool_calls: false }),
      client().chat.completions.create({ ...asked, tool_choice: { type: 'function', function: { name: 'now' } } }),
      client()
        .chat.completions.stream({ ...asked, tool_choice: 'required', parallel_tool_calls: false })
        .finalChatCompletion(),
    ]);
    for (const { finish_reason, message } of [...required.choices, ...single.choices]) {
      expect(finish_reason).toBe('tool_calls');
      const [call] = message.tool_calls ?? [];
      if (call?.type !== 'function') throw new Error('the answer has no call');
      if (call.function.name === 'get_weather') weather.parse(JSON.parse(call.function.arguments));
      else expect(call.function).toMatchObject({ name: 'now', arguments: expect.stringMatching(/^\{\s*\}$/) });
    }
    expect(named.choices[0]?.message.tool_calls).toMatchObject([{ function: { name: 'now' } }]);
    const days: number[] = [];
    const runner = client().chat.completions.runTools({
      ...{
        model,
        messages,
        max_tokens: 200,
        seed: 5,
        tool_choice: { type: 'function' as const, function: { name: 'get_weather' } },
      },
      tools: [
        {
          type: 'function',
          function: {
            ...{ name: 'get_weather', description: 'The weather of a place.', parameters },
            parse: (text: string) => weather.parse(JSON.parse(text)),
            function: (args: z.infer<typeof weather>) => void days.push(args.days),
          },
        },
      ],
    });
    await runner.done();
    expect(days).toHaveLength(1);
  });

  it('samples the same tokens from one seed, others from another', async () => {
    const story = (seed: number) =>
      client().completions.create({ model, prompt: 'Once upon a time', max_tokens: 24, temperature: 1.5, seed });
    const [first, again, other] = await Promise.all([story(7), story(7), story(8)]);
    expect(again.choices[0]?.text).toBe(first.choices[0]?.text);
    expect(other.choices[0]?.text).not.toBe(first.choices[0]?.text);
  });

  it('sees errors as its own classes', async () => {
    const chat = (more: object) =>
      client().chat.completions.create({
        model,
        messages: [{ role: 'user', content: 'x' }],
        ...more,
      } as OpenAI.ChatCompletionCreateParamsNonStreaming);
    await expect(chat({ model: 'nope' })).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(chat({ temperature: -1 })).rejects.toMatchObject({ status: 400, param: 'temperature' });
    await expect(chat({ max_tokens: 100_000 })).rejects.toMatchObject({ status: 400, code: 'context_length_exceeded' });
  });
});

describe('Vercel AI SDK', () => {
  const provider = () => createOpenAICompatible({ name: 'kvasir', baseURL: `${server.url}/v1`, includeUsage: true });

  it('calls a tool', async () => {
    const input = z.strictObject({ place: z.enum(['Oslo', 'Rome']) });
    const { toolCalls, finishReason } = await generateText({
      ...{ model: provider()(model), prompt: 'Is it cold in Oslo?', maxOutputTokens: 200, seed: 5 },
      toolChoice: { type: 'tool', toolName: 'get_weather' },
      tools: { get_weather: tool({ description: 'The weather of a place.', inputSchema: input }) },
    });
    expect(finishReason).toBe('tool-calls');
    expect(toolCalls).toHaveLength(1);
    for (const call of toolCalls) input.parse(call.input);
  });

  it('generates', async () => {
    const { text, usage } = await generateText({ model: provider()(model), prompt: recall, temperature: 0 });
    expect(text).toContain('4821');
    expect(usage.outputTokens).toBeGreaterThan(3);
  });

  it('streams', async () => {
    const { textStream, finishReason } = streamText({ model: provider()(model), prompt: recall, temperature: 0 });
    let text = '';
    for await (const piece of textStream) text += piece;
    expect(text).toContain('4821');
    expect(await finishReason).toBe('stop');
  });
});
