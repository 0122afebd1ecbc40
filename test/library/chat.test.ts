// Chats of the library over a scripted port: deltas and results, rounds of tools, typed outputs, cancelling and errors.
import { describe, expect, expectTypeOf, it } from 'vitest';
import { z } from 'zod';
import { ClosedError, InvalidRequestError, OutputError, OverloadedError } from '../../src/library/errors.ts';
import { type ToolCall, tool } from '../../src/library/messages.ts';
import { scripted } from './world.ts';

const callOf = (args: string): string => `<tool_call>\n{"name": "weather", "arguments": ${args}}\n</tool_call>`;
const parameters = z.object({ place: z.string() });
const weather = tool({ description: 'The weather of a place.', parameters, execute: ({ place }) => ({ place, c: 7 }) });
/** Calls the tool, then answers with what the prompt has of its result. */
const callsOnce = (prompt: string): string =>
  prompt.includes('tool_response') ? `It is ${/"c":(\d+)|Error.*/.exec(prompt)?.[0]}` : callOf('{"place": "Oslo"}');

describe('a chat', () => {
  it('is a promise of its answer, and an iterable of its deltas for any number of readers', async () => {
    const { llm, port } = scripted(() => 'Hello there');
    const run = llm.chat('hi', { maxTokens: 50, seed: 3, stop: ['END'] });
    await run.accepted;
    const pieces: string[] = [];
    for await (const delta of run) if (delta.type === 'text') pieces.push(delta.text);
    const result = await run;
    expect(pieces.join('')).toBe('Hello there');
    expect(pieces.length).toBeGreaterThan(1);
    expect(result).toMatchObject({ text: 'Hello there', finishReason: 'stop', object: undefined, toolCalls: [] });
    expect(result.messages).toEqual([{ role: 'assistant', content: 'Hello there' }]);
    expect(result.usage).toMatchObject({ cachedTokens: 1, outputTokens: 11, reasoningTokens: 0 });
    expect(port.requests[0]).toMatchObject({ maxTokens: 50, sampling: { seed: [3, 0] } });
    const again: string[] = [];
    for await (const delta of run) if (delta.type === 'text') again.push(delta.text);
    expect(again.join('')).toBe('Hello there');
  });

  it('keeps no list of tokens for a slow reader', async () => {
    const run = scripted(() => 'x'.repeat(400)).llm.chat('hi');
    const deltas = run[Symbol.asyncIterator]();
    await deltas.next();
    await run;
    const rest: unknown[] = [];
    for await (const delta of deltas) rest.push(delta);
    expect(rest).toEqual([{ type: 'text', text: 'x'.repeat(398) }]);
  });

  it('is a body of a Response', async () => {
    expect(
      await new Response(
        scripted(() => 'Grüße')
          .llm.chat('hi')
          .textStream(),
      ).text(),
    ).toBe('Grüße');
  });
});

describe('tools', () => {
  it('run in this process until the model answers without a call', async () => {
    const { llm, port } = scripted(callsOnce);
    const run = llm.chat('Weather in Oslo?', { tools: { weather } });
    const types: string[] = [];
    for await (const { type } of run) if (types.at(-1) !== type) types.push(type);
    const result = await run;
    expect(types).toEqual(['tool-call', 'tool-result', 'text']);
    expect(result.text).toBe('It is "c":7');
    expect(result.messages.map(({ role }) => role)).toEqual(['assistant', 'tool', 'assistant']);
    expect(port.requests.length).toBe(2);
    expect(result.usage.cachedTokens).toBe(2);
  });

  it('without a function end the answer with typed calls', async () => {
    const tools = { weather: tool({ parameters }), other: tool({ parameters: { type: 'object', properties: {} } }) };
    const result = await scripted(callsOnce).llm.chat('Weather in Oslo?', { tools });
    expect(result.finishReason).toBe('tool-calls');
    const [call] = result.toolCalls;
    expect(call).toMatchObject({ name: 'weather', arguments: { place: 'Oslo' }, text: '{"place": "Oslo"}' });
    if (call?.name === 'weather') expectTypeOf(call.arguments).toEqualTypeOf<{ place: string }>();
    expectTypeOf<ToolCall<typeof tools>['name']>().toEqualTypeOf<'weather' | 'other'>();
  });

  it('send invalid arguments and thrown errors back to the model', async () => {
    const wrong = scripted((prompt) => (prompt.includes('tool_response') ? callsOnce(prompt) : callOf('{"place": 5}')));
    expect((await wrong.llm.chat('?', { tools: { weather } })).text).toContain(
      "arguments of 'weather' are invalid: 'place'",
    );
    const failing = tool({
      parameters,
      execute: () => {
        throw new Error('no service');
      },
    });
    expect((await scripted(callsOnce).llm.chat('?', { tools: { weather: failing } })).text).toContain(
      'Error: no service',
    );
  });

  it('stop after the given number of rounds', async () => {
    const { llm, port } = scripted(() => callOf('{"place": "Oslo"}'));
    const result = await llm.chat('?', { tools: { weather }, toolRoundsMax: 2 });
    expect(result.finishReason).toBe('tool-calls');
    expect(port.requests.length).toBe(3);
  });

  it('continue a conversation that another request began', async () => {
    const { llm } = scripted(callsOnce);
    const asked = await llm.chat('?', { tools: { weather: tool({ parameters }) } });
    const id = asked.toolCalls[0]?.id ?? '';
    const answered = await llm.chat([
      { role: 'user', content: '?' },
      ...asked.messages,
      { role: 'tool', toolCallId: id, content: '"c":9' },
    ]);
    expect(answered.text).toBe('It is "c":9');
  });
});

describe('a schema', () => {
  it('constrains the output, and types the object', async () => {
    const { llm, port } = scripted(() => '{"name":"Ada","age":36}');
    const fromZod = await llm.chat('?', { schema: z.object({ name: z.string(), age: z.number() }) });
    expectTypeOf(fromZod.object).toEqualTypeOf<{ name: string; age: number }>();
    expect(fromZod.object).toEqual({ name: 'Ada', age: 36 });
    expect(port.requests[0]?.grammar?.text).toContain('"age"');
    const properties = { name: { type: 'string' }, age: { type: 'integer' }, kind: { enum: ['a', 'b'] } } as const;
    const fromJson = await llm.chat('?', { schema: { type: 'object', properties, required: ['name'] } });
    expectTypeOf(fromJson.object.name).toEqualTypeOf<string>();
    expectTypeOf(fromJson.object.age).toEqualTypeOf<number | undefined>();
    expectTypeOf(fromJson.object.kind).toEqualTypeOf<'a' | 'b' | undefined>();
    expect(fromJson.object).toEqual({ name: 'Ada', age: 36 });
  });

  it('refuses an output that is cut, or that the checks of the schema refuse', async () => {
    const cut = scripted(() => '{"na', 'length').llm.chat('?', { schema: z.object({ name: z.string() }) });
    await expect(cut).rejects.toThrow(OutputError);
    const old = z.object({ age: z.number().refine((age) => age > 90, 'too young') });
    const refused = scripted(() => '{"age": 3}').llm.chat('?', { schema: old });
    await expect(refused).rejects.toThrow("Cannot accept output: 'age': too young");
  });
});

describe('a chat that ends early', () => {
  it('is cancelled by its signal, whose reason it rejects with', async () => {
    const { llm, port } = scripted(() => 'x'.repeat(1000));
    const stop = new AbortController();
    const run = llm.chat('hi', { signal: stop.signal });
    for await (const _ of run) {
      stop.abort(new Error('enough'));
      break;
    }
    await expect(run).rejects.toThrow('enough');
    expect(port.cancelled.length).toBe(1);
    await expect(llm.chat('hi', { signal: stop.signal })).rejects.toThrow('enough');
    expect(port.requests.length).toBe(1);
  });

  it('is cancelled by a reader that leaves', async () => {
    const { llm, port } = scripted(() => 'x'.repeat(1000));
    const run = llm.chat('hi');
    for await (const _ of run) break;
    await expect(run).rejects.toThrow('aborted');
    expect(port.cancelled.length).toBe(1);
  });

  it('is ended by the end of the engine, which refuses further ones', async () => {
    const { llm, port } = scripted(() => 'x'.repeat(1000));
    const run = llm.chat('hi');
    for await (const _ of run) {
      await llm.close();
      break;
    }
    await expect(run).rejects.toThrow(ClosedError);
    await expect(llm.chat('hi')).rejects.toThrow(ClosedError);
    await expect(llm.tokenize('hi')).rejects.toThrow(ClosedError);
    expect(port.cancelled.length).toBe(1);
  });
});

describe('a refused chat', () => {
  it('names the option in the words of the library', async () => {
    const { llm } = scripted(() => '');
    const refused = llm.chat('hi', { maxTokens: 0 });
    await expect(refused).rejects.toThrow("Cannot accept request: 'maxTokens' must be at least 1, got 0");
    await expect(refused).rejects.toMatchObject({
      name: 'InvalidRequestError',
      field: 'maxTokens',
      code: 'invalid_value',
    });
    await expect(llm.chat([{ role: 'user' } as never])).rejects.toThrow(InvalidRequestError);
    await expect(llm.chat('hi', { tools: { weather }, toolChoice: { tool: 'news' as never } })).rejects.toMatchObject({
      field: 'toolChoice',
    });
    await expect(llm.complete('x'.repeat(200_000))).rejects.toMatchObject({ code: 'context_length_exceeded' });
  });

  it('states when another attempt may succeed', async () => {
    const { llm, port } = scripted(() => '');
    const failed = {
      kind: 'failed',
      code: 'KV_OVERLOADED',
      message: 'Cannot admit request',
      retryAfterMs: 250,
    } as const;
    port.submit = (_, sink) => sink(failed);
    const refused = llm.chat('hi');
    await expect(refused.accepted).rejects.toThrow(OverloadedError);
    await expect(refused).rejects.toMatchObject({ code: 'kv_overloaded', retryAfterMs: 250 });
  });
});

it('completes texts and token ids, and converts between them', async () => {
  const { llm, port } = scripted((prompt) => `${prompt}!`);
  expect(await llm.complete('ab')).toMatchObject({ text: 'ab!', finishReason: 'stop', usage: { promptTokens: 2 } });
  expect((await llm.complete([97, 98], { maxTokens: 9 })).text).toBe('ab!');
  expect(port.requests.map(({ maxTokens }) => maxTokens)).toEqual([99_998, 9]);
  expect(await llm.tokenize('ab')).toEqual([97, 98]);
  expect(await llm.detokenize(await llm.tokenize([{ role: 'user', content: 'hi' }]))).toContain('hi');
});
