// The pool of models: loads on demand, once for concurrent requests, and unloads idle models for others.
import { afterEach, expect, it, vi } from 'vitest';
import { type LoadedModel, ModelPool, ModelUnavailable } from '../../../src/runtime/models/model-pool.ts';

/** A model whose loads and unloads end when the test says so. */
class FakeModel {
  readonly name: string;
  readonly expectedBytes: number;
  isBusy = false;
  /** Loads begun, and ends of loads and unloads that a test holds back. */
  loads = 0;
  held: ((error?: Error) => void)[] | undefined;
  heldBytes = 0;
  lose: (why: string) => void = () => {};

  constructor(name: string, expectedBytes: number) {
    this.name = name;
    this.expectedBytes = expectedBytes;
  }

  async load(): Promise<LoadedModel & { readonly name: string }> {
    this.loads++;
    await this.#step();
    this.heldBytes = this.expectedBytes;
    const own = this;
    return {
      name: this.name,
      bytes: this.expectedBytes,
      get isBusy() {
        return own.isBusy;
      },
      ended: new Promise((resolve) => {
        this.lose = resolve;
      }),
      close: async () => {
        await this.#step();
        this.heldBytes = 0;
      },
    };
  }

  async #step(): Promise<void> {
    const { held } = this;
    if (held === undefined) return;
    await new Promise<void>((resolve, reject) => {
      held.push((error) => (error === undefined ? resolve() : reject(error)));
    });
  }
}

afterEach(() => void vi.useRealTimers());

const idle = { batch: false, signal: new AbortController().signal };
const job = { ...idle, batch: true };
const done = async (): Promise<string> => 'done';

function open(...models: FakeModel[]) {
  const log: string[] = [];
  const pool = new ModelPool(models, { bytesMax: 100, log: (line) => log.push(line) });
  const states = (): string =>
    pool
      .status()
      .map(({ state }) => state)
      .join(' ');
  return { pool, log, states };
}

/** Lets all promises that can continue do so. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

it('loads once for concurrent first requests, and a disconnect ends only its own wait', async () => {
  const a = new FakeModel('a', 60);
  a.held = [];
  const { pool, states } = open(a);
  const client = new AbortController();
  const gone = pool.use('a', { batch: false, signal: client.signal }, done);
  const stays = pool.use('a', idle, async ({ name }) => name);
  await settled();
  expect([states(), pool.waiting, a.loads]).toEqual(['loading', 2, 1]);
  client.abort(new Error('gone'));
  await expect(gone).rejects.toThrow('gone');
  expect(pool.waiting).toBe(1);
  a.held[0]?.();
  expect(await stays).toBe('a');
  expect([states(), pool.waiting, a.loads]).toEqual(['loaded', 0, 1]);
});

it('keeps a model that loaded after every client disconnected, and unloads it for another', async () => {
  const [a, b] = [new FakeModel('a', 60), new FakeModel('b', 60)];
  a.held = [];
  const { pool, states } = open(a, b);
  const client = new AbortController();
  const gone = pool.use('a', { batch: false, signal: client.signal }, done);
  await settled();
  client.abort(new Error('gone'));
  await expect(gone).rejects.toThrow('gone');
  // A model that loads cannot be unloaded.
  await expect(pool.use('b', idle, done)).rejects.toThrow(ModelUnavailable);
  a.held[0]?.();
  await settled();
  a.held = undefined;
  expect(await pool.use('b', idle, done)).toBe('done');
  expect(states()).toBe('unloaded loaded');
});

it('reports a failed load to all that wait, and tries again after a back-off that doubles', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  const a = new FakeModel('a', 60);
  a.held = [];
  const { pool, log, states } = open(a);
  const both = [pool.use('a', idle, done), pool.use('a', idle, done)];
  await settled();
  a.held[0]?.(new Error('the file is damaged'));
  for (const each of both) await expect(each).rejects.toThrow("Cannot load model 'a': the file is damaged");
  expect([states(), log.length, pool.status()[0].failures, pool.status()[0].bytes]).toEqual(['unloaded', 1, 1, 0]);
  const refusal = () => pool.use('a', idle, done).catch((error: ModelUnavailable) => error);
  vi.advanceTimersByTime(600);
  expect(await refusal()).toMatchObject({
    ...{ message: "Cannot load model 'a': the file is damaged", reason: 'failed', retryAfterMs: 400 },
  });
  vi.advanceTimersByTime(400);
  const again = refusal();
  await settled();
  a.held[1]?.(new Error('the file is still damaged'));
  expect(await again).toMatchObject({ retryAfterMs: undefined });
  expect(await refusal()).toMatchObject({ message: expect.stringContaining('still damaged'), retryAfterMs: 2000 });
  expect(a.loads).toBe(2);
  a.held = undefined;
  vi.advanceTimersByTime(2000);
  expect(await pool.use('a', idle, done)).toBe('done');
  a.lose('no instance is left');
  await settled();
  // A load that succeeded ends the back-off.
  expect(await pool.use('a', idle, done)).toBe('done');
});

it('lets a request refuse before it waits for a load, and reports the end of the wait', async () => {
  const a = new FakeModel('a', 60);
  const { pool, states } = open(a);
  const calls: string[] = [];
  const refused = (): never => {
    throw new Error('refused');
  };
  await expect(pool.use('a', { ...idle, beginWait: refused }, done)).rejects.toThrow('refused');
  expect([states(), pool.waiting]).toEqual(['unloaded', 0]);
  const beginWait = () => {
    calls.push('wait');
    return () => void calls.push('end');
  };
  const run = async () => void calls.push('run');
  for (let i = 0; i < 2; i++) await pool.use('a', { ...idle, beginWait }, run);
  expect(calls).toEqual(['wait', 'end', 'run', 'run']);
});

it('unloads the idle model used longest ago, and loads once its memory is free', async () => {
  const models = ['a', 'b', 'c'].map((name) => new FakeModel(name, 40));
  const [a, b, c] = models as [FakeModel, FakeModel, FakeModel];
  const { pool, states } = open(...models);
  await pool.use('a', idle, done);
  await pool.use('b', idle, done);
  await pool.use('a', idle, done);
  b.held = [];
  const third = pool.use('c', idle, done);
  await settled();
  expect([states(), c.loads]).toEqual(['loaded unloading loading', 0]);
  b.held[0]?.();
  await third;
  expect([a.heldBytes, b.heldBytes, c.heldBytes]).toEqual([40, 0, 40]);
});

it('refuses with figures while the other models have requests, and never unloads these', async () => {
  const [a, b] = [new FakeModel('a', 60), new FakeModel('b', 60)];
  const { pool } = open(a, b);
  let finish: (text: string) => void = () => {};
  const running = pool.use(
    'a',
    idle,
    () =>
      new Promise<string>((resolve) => {
        finish = resolve;
      }),
  );
  await settled();
  const refused = await pool.use('b', idle, done).catch((error: ModelUnavailable) => error);
  expect(refused).toMatchObject({ reason: 'memory', figures: { needed: 60, held: 60, limit: 100 } });
  a.isBusy = true;
  finish('first');
  await running;
  // The submitted request still runs.
  await expect(pool.use('b', idle, done)).rejects.toThrow("in use by 'a'");
  // Batch jobs of 'a' yield.
  await expect(pool.use('a', job, done)).rejects.toThrow("model 'b' needs its memory");
  a.isBusy = false;
  expect(await pool.use('b', idle, done)).toBe('done');
  expect([a.heldBytes, b.heldBytes]).toEqual([0, 60]);
});

it('unloads a model whose instances are lost, and loads it again at the next request', async () => {
  const a = new FakeModel('a', 60);
  const { pool, states } = open(a);
  await pool.use('a', idle, done);
  a.lose('no instance is left');
  await settled();
  expect([states(), a.heldBytes]).toEqual(['unloaded', 0]);
  await pool.use('a', idle, done);
  expect(a.loads).toBe(2);
});

it('closes after a load in progress, and loads nothing afterwards', async () => {
  const [a, b] = [new FakeModel('a', 60), new FakeModel('b', 30)];
  a.held = [];
  const { pool } = open(a, b);
  const first = pool.use('a', idle, done);
  await settled();
  const closed = pool.close();
  await expect(pool.use('b', idle, done)).rejects.toThrow('closing');
  a.held[0]?.();
  await first;
  a.held[1]?.();
  await closed;
  expect([a.heldBytes, b.loads]).toEqual([0, 0]);
});
