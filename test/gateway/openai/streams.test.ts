// A stream equals the whole response, for any token boundaries within characters and stop strings; it is kept alive.
import fc from 'fast-check';
import { expect, it, vi } from 'vitest';
import { keepAliveMs, SseStream } from '../../../src/gateway/http/sse.ts';
import { accepted, finished, type Script, started, tokens } from '../scripted-port.ts';
import { answering, events, gateway } from '../world.ts';
import { bytesOf } from './byte-tokenizer.ts';

interface Choice {
  readonly index: number;
  readonly text: string;
  readonly token_ids?: readonly number[];
  readonly finish_reason: string | null;
  readonly logprobs: { readonly text_offset: readonly number[] } | null;
}

/** Texts of few characters, some of several bytes, so that stop strings occur. */
const text = fc.string({ unit: fc.constantFrom('a', 'b', 'é', '語', '🦊'), maxLength: 12 });
const pieces = fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 1, maxLength: 40 });

function script(output: string, sizes: readonly number[]): Script {
  const left = bytesOf(output);
  const groups: number[][] = [];
  for (let i = 0; left.length > 0; i++) groups.push(left.splice(0, sizes[i % sizes.length]));
  const spelled = groups.map((ids) =>
    tokens(ids, {
      width: 0,
      logprobs: new Float32Array(ids.length),
      topTokens: new Int32Array(),
      topLogprobs: new Float32Array(),
    }),
  );
  return () => [accepted, started(0), ...spelled, finished('length')];
}

it('streams the text of the whole response', async () => {
  const check = async (output: string, sizes: readonly number[], stop: readonly string[], n: number): Promise<void> => {
    const { post } = gateway(script(output, sizes));
    const body = { model: 'bytes', prompt: 'x', max_tokens: 60, n, stop, logprobs: 0, return_token_ids: true };
    const whole = (await (await post('/v1/completions', body)).json()) as { choices: Choice[]; usage: object };
    const streamed = await events(
      await post('/v1/completions', { ...body, stream: true, stream_options: { include_usage: true } }),
    );
    expect(streamed.pop()).toBe('done');
    expect(streamed.pop()).toMatchObject({ choices: [], usage: whole.usage });
    const chunks = streamed.flatMap((chunk) => (chunk as { choices: Choice[] }).choices);
    const cut = Math.min(...stop.map((end) => output.indexOf(end)).filter((at) => at >= 0), output.length);
    for (const { index, text, token_ids, finish_reason, logprobs } of whole.choices) {
      const own = chunks.filter((chunk) => chunk.index === index);
      expect(own.map((chunk) => chunk.text).join('')).toBe(text);
      expect(own.flatMap((chunk) => chunk.token_ids ?? [])).toEqual(token_ids);
      expect(own.flatMap((chunk) => chunk.logprobs?.text_offset ?? [])).toEqual(logprobs?.text_offset);
      expect(own.map((chunk) => chunk.finish_reason).filter((reason) => reason !== null)).toEqual([finish_reason]);
      expect(own.at(-1)?.finish_reason).toBe(finish_reason);
      for (const chunk of own) expect(chunk.text).not.toMatch(/\p{Surrogate}/u);
      expect(output.startsWith(text)).toBe(true);
      expect(finish_reason).toBe(cut < output.length ? 'stop' : 'length');
      if (finish_reason === 'length') expect(text).toBe(output);
      for (const end of stop) expect(text).not.toContain(end);
    }
  };
  const stops = fc.array(fc.string({ unit: fc.constantFrom('a', 'b', 'é', '語', '🦊'), minLength: 1, maxLength: 3 }), {
    maxLength: 3,
  });
  await fc.assert(fc.asyncProperty(text, pieces, stops, fc.integer({ min: 1, max: 2 }), check), { numRuns: 200 });
});

it('sends a comment after each 10 s without an event, and none after the end', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const stream = new SseStream({ bufferBytesMax: 1000, onDisconnect: () => {} });
    const pass = (ms: number): void => void vi.advanceTimersByTime(ms);
    pass(keepAliveMs);
    pass(keepAliveMs - 1);
    stream.send({ token: 1 });
    pass(keepAliveMs - 1);
    stream.send({ token: 2 });
    pass(keepAliveMs);
    stream.done();
    pass(2 * keepAliveMs);
    const comment = ': keep-alive\n\n';
    const events = ['data: {"token":1}\n\n', 'data: {"token":2}\n\n', comment, 'data: [DONE]\n\n'];
    expect(await new Response(stream.toBody()).text()).toBe(`${comment}${events.join('')}`);
    expect(vi.getTimerCount()).toBe(0);
  } finally {
    vi.useRealTimers();
  }
});

it('disconnects a client once more than the limit is buffered for it', async () => {
  const why: string[] = [];
  const stream = new SseStream({ bufferBytesMax: 1000, onDisconnect: (reason) => why.push(reason) });
  stream.send({ text: 'x'.repeat(900) });
  expect(why).toEqual([]);
  stream.send({ text: 'x'.repeat(900) });
  expect(why).toEqual(['too slow']);
  await expect(new Response(stream.toBody()).text()).rejects.toThrow();
});

it('cancels a choice that a stop string has ended', async () => {
  const { post, port } = gateway(answering('abxyz'));
  const response = await post('/v1/completions', { model: 'bytes', prompt: 'p', stop: ['x'] });
  expect(await response.json()).toMatchObject({ choices: [{ text: 'ab', finish_reason: 'stop' }] });
  expect(port.cancelled).toHaveLength(1);
});

it('leaves no timer where the request is refused', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const refused = { kind: 'failed', code: 'KV_OVERLOADED', message: 'Cannot admit: full', retryAfterMs: 1 } as const;
    const { post } = gateway(() => [refused]);
    const before = vi.getTimerCount();
    expect((await post('/v1/completions', { model: 'bytes', prompt: 'x', stream: true })).status).toBe(429);
    expect(vi.getTimerCount()).toBe(before);
  } finally {
    vi.useRealTimers();
  }
});
