// Engines of the embedded model in this process: the prefix cache, cancelling, several engines, and their end.
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Llm } from '../../src/library/index.ts';
import { bundled } from './world.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const facts = 'Remember: the code for zebra is 4821. The code for apple is 9077. ';
const { load, LoadError } = await bundled();
let llm: Llm;

beforeAll(async () => {
  llm = await load({ threads: 1, build: false });
});
afterAll(() => llm.close());

it('answers, and computes a shared prefix once', async () => {
  const first = await llm.chat(`${facts}What is the code for zebra?`, { temperature: 0 });
  expect(first).toMatchObject({ text: 'The code for zebra is 4821.', finishReason: 'stop' });
  const [apple, zebra] = await Promise.all([
    llm.chat(`${facts}What is the code for apple?`, { temperature: 0 }),
    llm.chat(`${facts}What is the code for zebra?`, { temperature: 0 }),
  ]);
  expect(apple.text).toContain('9077');
  expect(zebra.text).toBe(first.text);
  expect(zebra.usage.cachedTokens).toBeGreaterThan(0);
});

it('frees the pages of a request that is aborted, while another one goes on', async () => {
  const stop = new AbortController();
  const long = llm.complete('Once upon a time', { minTokens: 8000, maxTokens: 8000, signal: stop.signal });
  const other = llm.complete('Once upon a time', { temperature: 0, maxTokens: 8 });
  // The first delta is read, and no further one: the engine waits for no reader.
  await long[Symbol.asyncIterator]().next();
  expect((await other).usage.outputTokens).toBe(8);
  stop.abort();
  await expect(long).rejects.toThrow('aborted');
  while (llm.stats().pages.used > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  expect(llm.stats()).toMatchObject({ running: 0, waiting: 0 });
});

it('embeds texts, which keep no pages', async () => {
  const [a, b, c] = await llm.embed(['Once upon a time', 'Once upon a time', 'zebra'], { pooling: 'mean' });
  const dot = (x: Float32Array = new Float32Array(0), y: Float32Array = new Float32Array(0)): number =>
    x.reduce((sum, value, i) => sum + value * (y[i] ?? 0), 0);
  expect(dot(a, b)).toBeCloseTo(1, 2);
  expect(dot(a, c)).toBeLessThan(dot(a, b));
  await expect(llm.embed(['a'], { dimensions: 3 })).rejects.toMatchObject({ field: 'dimensions' });
});

it('is independent of another engine in the process', async () => {
  const other = await load({
    threads: 1,
    build: false,
    context: 256,
    warmUp: false,
    chatTemplate: '{{ messages[0].content }}',
  });
  const prompt = 'Once upon a time';
  const texts = await Promise.all([
    llm.complete(prompt, { temperature: 0, maxTokens: 4 }),
    other.complete(prompt, { temperature: 0, maxTokens: 4 }),
  ]);
  expect(texts[0].text).toBe(texts[1].text);
  expect(await other.tokenize([{ role: 'user', content: 'a' }])).toEqual(
    await llm.tokenize('a', { addSpecial: false }),
  );
  await other.close();
  await other.close();
  await expect(other.chat('hi')).rejects.toThrow('the engine is closed');
  expect((await llm.complete(prompt, { maxTokens: 1 })).usage.outputTokens).toBe(1);
});

it('refuses options that it cannot use, by their names', async () => {
  await expect(load({ model: 'nope' })).rejects.toThrow("No file or folder 'nope'; a hub model is org/name");
  await expect(load({ context: 10 ** 9 })).rejects.toThrow(
    /^Cannot use context 1000000000: the model has \d+ positions$/,
  );
  await expect(load({ kvType: 'q9' })).rejects.toThrow(LoadError);
  await expect(load({ speed: 3 } as object)).rejects.toMatchObject({ code: 'invalid_option' });
});

it('lets a process exit that does not close it, also from CommonJS', async () => {
  const script = `
    import('kvasir').then(async ({ load }) => {
      const llm = await load({ threads: 1, build: false, context: 256, warmUp: false });
      const { text } = await llm.complete('Once upon a time', { maxTokens: 3, temperature: 0 });
      console.log(text.length > 0);
    });`;
  const { stdout } = await promisify(execFile)(process.execPath, ['-e', script], {
    cwd: root,
  });
  expect(stdout).toBe('true\n');
});
