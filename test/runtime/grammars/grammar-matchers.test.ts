// Masks of a step from grammar threads: requested ahead or at once, from several threads, and after the loss of a thread.
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { type Grammar, GrammarQueueFull } from '../../../src/core/protocol/grammar.ts';
import { greedySampling } from '../../../src/engine/plain-step.ts';
import { GrammarMatchers } from '../../../src/runtime/grammars/grammar-matchers.ts';
import { ThreadCompiler } from '../../../src/runtime/grammars/thread-compiler.ts';
import type { Step } from '../../../src/util/step.ts';
import { openModel } from '../../../src/weights/open-model.ts';

const entry = new URL('../../../bundle/cli/serve/model/grammar-worker.js', import.meta.url);
const model = fileURLToPath(new URL('../../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));
const regex = (text: string): Grammar => ({ kind: 'regex', text });

type Outputs = Readonly<Record<string, readonly number[]>>;

/** A step that samples one row for each request; `free` rows come between. */
function stepOf(outputs: Outputs): Step {
  const requests = Object.entries(outputs);
  const logitRows = Int32Array.from({ length: 2 * requests.length }, (_, row) => row);
  const grammarRows = requests.map(([request, output], i) => {
    return { row: 2 * i + 1, sequence: 2 * i + 1, request, output: Int32Array.from(output) };
  });
  const none = new Int32Array(0);
  const sampling = greedySampling(logitRows.length);
  return { tokens: none, positions: none, rowStart: none, groups: [], remote: [], logitRows, sampling, grammarRows };
}

test('masks are a function of grammar and output, whichever thread computes them and when', async () => {
  const { vocabSize } = openModel(model).config;
  const matchers = new GrammarMatchers(entry, model, vocabSize, 8, () => {});
  const compile = async (id: string, grammar: Grammar): Promise<string | undefined> => {
    matchers.compile(id, grammar);
    for (;;) {
      for (const event of matchers.poll()) if (event.id === id) return event.fault;
      await sleep(1);
    }
  };
  /** Allowed tokens of each request. */
  const allowed = async (outputs: Outputs): Promise<readonly (readonly number[])[]> => {
    for (;;) {
      const { step, unmasked } = matchers.masked(stepOf(outputs));
      if (unmasked === undefined) return masksOf(step);
      matchers.poll();
      await sleep(1);
    }
  };
  try {
    // Requests with the same grammar share a thread; another grammar gets another thread.
    expect([await compile('a', regex('[ab]{2}c')), await compile('b', regex('[ab]{2}c'))]).toEqual([
      undefined,
      undefined,
    ]);
    expect(await compile('c', regex('[0-9]{3}'))).toBeUndefined();
    const [first, same, digits] = await allowed({ a: [], b: [], c: [] });
    expect(same).toEqual(first);
    expect(first?.length).toBeGreaterThanOrEqual(2);
    expect(digits).not.toEqual(first);
    const [token = 0, digit = 0] = [first?.[0], digits?.[0]];
    // Requested ahead, then as a part of a larger step.
    matchers.sampled(stepOf({ a: [], c: [] }), Int32Array.of(0, token, 0, digit));
    const [second, , third] = await allowed({ a: [token], b: [], c: [digit] });
    matchers.sampled(stepOf({ a: [token], c: [digit] }), Int32Array.of(0, second?.[0] ?? 0, 0, third?.[0] ?? 0));
    // That step did not count.
    expect(await allowed({ a: [token], c: [digit] })).toEqual([second, third]);
    matchers.replaceThreads('its thread was replaced');
    expect(await allowed({ a: [token], b: [] })).toEqual([second, first]);
    matchers.release('a');
    expect(() => matchers.masked(stepOf({ a: [] }))).toThrow('has no matcher');
    expect(await compile('d', regex('('))).toContain('Regex parsing error');
  } finally {
    await matchers.close();
  }
});

test('a grammar that takes too long is refused, and the others wait for another thread', async () => {
  // A thread that never answers.
  const silent = new URL('data:text/javascript,setInterval(() => {}, 1e6)');
  const compiler = new ThreadCompiler(silent, model, { compileMsMax: 5, vocabularyMs: 0 });
  const faults = await Promise.all(['a', 'b', 'a'].map((text) => compiler.compile(regex(text))));
  expect(faults).toEqual(Array(3).fill('it takes longer than 0.005 s to compile'));
  await compiler.close();
});

test('grammars beyond the waiting ones are refused, and compiled once others are done', async () => {
  const answering = new URL(
    `data:text/javascript,import { workerData as d } from 'node:worker_threads';
    d.port.on('message', ({ number }) => d.port.postMessage({ kind: 'compiled', number }))`,
  );
  const compiler = new ThreadCompiler(answering, model);
  const answers = await Promise.allSettled(Array.from({ length: 600 }, (_, i) => compiler.compile(regex(`${i}`))));
  const refused = answers.flatMap((answer) => (answer.status === 'rejected' ? [answer.reason] : []));
  // One is being compiled.
  expect(refused).toHaveLength(600 - 257);
  expect(refused[0]).toBeInstanceOf(GrammarQueueFull);
  expect(await Promise.all(['599', '600'].map((text) => compiler.compile(regex(text))))).toEqual([
    undefined,
    undefined,
  ]);
  await compiler.close();
});

/** A thread that answers grammars whose text is a digit, and is busy for ever with others. */
const busyWithOthers = new URL(
  `data:text/javascript,import { workerData as d } from 'node:worker_threads';
  d.port.on('message', ({ number, grammar }) => {
    if (grammar === undefined) return d.port.postMessage({ kind: 'loaded' });
    if (!/^\\d$/.test(grammar.text)) for (;;) {}
    d.port.postMessage({ kind: 'compiled', number });
  })`,
);

test("a grammar that takes long delays its own tenant only, and tenants' grammars take turns", async () => {
  const compiler = new ThreadCompiler(busyWithOthers, model, { tenantWaitingMax: 2 });
  const order: string[] = [];
  const compile = (tenant: string, text: string): Promise<unknown> =>
    compiler.compile(regex(text), tenant).then(() => order.push(`${tenant}${text}`));
  // Their thread is ended below, before they could be answered.
  void compile('a', 'huge');
  void compile('a', '1');
  void compile('a', '2');
  await expect(compiler.compile(regex('3'), 'a')).rejects.toThrow('2 of the tenant other grammars wait');
  await Promise.all(['b4', 'b5', 'b6', 'c7', 'c8'].map(([tenant = '', text = '']) => compile(tenant, text)));
  expect(order).toEqual(['b4', 'b5', 'c7', 'b6', 'c8']);
  await compiler.close();
});

test('a time-out is forgotten after a time, other answers stay', async () => {
  const compiler = new ThreadCompiler(busyWithOthers, model, { compileMsMax: 5, vocabularyMs: 0, refusedMs: 0 });
  const timedOut = 'it takes longer than 0.005 s to compile';
  for (let i = 0; i < 2; i++) expect(await compiler.compile(regex('huge'))).toBe(timedOut);
  await compiler.close();
  const remembering = new ThreadCompiler(busyWithOthers, model, { compileMsMax: 5, vocabularyMs: 0 });
  expect(await remembering.compile(regex('huge'))).toBe(timedOut);
  await remembering.close();
  // No thread answers any more.
  expect(await remembering.compile(regex('huge'))).toBe(timedOut);
});

test('grammars that wait when the compiler closes are answered', async () => {
  const compiler = new ThreadCompiler(busyWithOthers, model);
  const answers = ['first', 'second'].map((pattern) => compiler.compile(regex(pattern)));
  await compiler.close();
  answers.push(compiler.compile(regex('later')));
  expect(await Promise.all(answers)).toEqual(answers.map(() => 'the compiler is closed'));
});

test('a warm-up reads the vocabulary once, before the first grammar', async () => {
  const counting = new URL(
    `data:text/javascript,import { workerData as d } from 'node:worker_threads';
    let loads = 0;
    d.port.on('message', ({ kind, number }) => {
      if (kind === 'load') loads++;
      else d.port.postMessage({ kind: 'compiled', number, fault: loads + ' loads' });
    })`,
  );
  const compiler = new ThreadCompiler(counting, model);
  compiler.warmUp();
  compiler.warmUp();
  expect(await compiler.compile(regex('a'))).toBe('1 loads');
  await compiler.close();
});

function masksOf({ sampling, logitRows }: Step): readonly (readonly number[])[] {
  const { start, words } = sampling.masks ?? { start: new Int32Array(0), words: new Uint32Array(0) };
  return Array.from(logitRows, (row) => words.subarray(start[row], start[row + 1]))
    .filter(({ length }) => length > 0)
    .map((mask) =>
      [...Array(mask.length * 32).keys()].filter((id) => (((mask[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1),
    );
}
