// The threads that tokenize long texts: one text does not hold up the others, and each ends with its request or at its deadline.
import { afterEach, expect, it } from 'vitest';
import { TokenizerPool, type TokenizerPoolOptions } from '../../../src/runtime/tokenizer/tokenizer-pool.ts';

const entry = new URL('./spinning-tokenizer.mjs', import.meta.url);
const pools: TokenizerPool[] = [];
afterEach(async () => {
  for (const each of pools.splice(0)) await each.close();
});

function pool(options: Partial<TokenizerPoolOptions>): TokenizerPool {
  const own = new TokenizerPool({ entry, settings: {}, threadsMax: 1, ...options });
  pools.push(own);
  return own;
}

it('another thread tokenizes while one is busy, and a text waits only while all are', async () => {
  const two = pool({ threadsMax: 2, graceMs: 0 });
  const request = new AbortController();
  const endless = two.encode('endless', false, { signal: request.signal });
  expect(await two.encode('abc', false)).toEqual(Int32Array.of(3));
  const other = new AbortController();
  const second = two.encode('endless', false, { signal: other.signal });
  const waiting = two.encode('abcd', false);
  // Both threads run: the text waits until a request ends, whose thread is replaced.
  request.abort();
  await expect(endless).rejects.toThrow('Cannot tokenize text: its request ended');
  expect(await waiting).toEqual(Int32Array.of(4));
  other.abort();
  await expect(second).rejects.toThrow('its request ended');
});

it('a text that waits ends with its request', async () => {
  const one = pool({});
  const [running, request] = [one.encode('endless', false), new AbortController()];
  const waiting = one.encode('abc', false, { signal: request.signal });
  request.abort();
  await expect(waiting).rejects.toThrow('its request ended');
  await expect(one.encode('abc', false, { signal: request.signal })).rejects.toThrow('its request ended');
  void one.close();
  await expect(running).rejects.toThrow('Cannot tokenize text: it was closed');
  await expect(one.encode('abc', false)).rejects.toThrow('Cannot tokenize text: it was closed');
});

it('a text that exceeds the time fails, its wait for a thread included', async () => {
  const one = pool({ timeoutMs: 20 });
  const texts = ['endless', 'endless', 'endless'].map((text) => one.encode(text, false));
  for (const result of await Promise.allSettled(texts))
    expect(String((result as PromiseRejectedResult).reason)).toContain('it takes longer than 0.02 s');
});

it('callers take turns, each in the order of its texts', async () => {
  const one = pool({ graceMs: 0 });
  const request = new AbortController();
  const running = one.encode('endless', false, { signal: request.signal, caller: 'a' });
  const done: string[] = [];
  const encode = async (caller: string, text: string, signal?: AbortSignal): Promise<void> => {
    await one.encode(text, false, { caller, signal }).then(
      () => done.push(text),
      () => {},
    );
  };
  const ended = new AbortController();
  const flood = ['a1', 'a2', 'a3', 'a4'].map((text) => encode('a', text));
  const others = [encode('b', 'b1'), encode('c', 'c1', ended.signal), encode('b', 'b2')];
  ended.abort();
  request.abort();
  await expect(running).rejects.toThrow('its request ended');
  await Promise.all([...flood, ...others]);
  expect(done).toEqual(['a1', 'b1', 'a2', 'b2', 'a3', 'a4']);
});
