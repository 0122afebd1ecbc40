// The instance's loop: a cancel takes effect at the next abort, whenever its message and the stop flag arrive.
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createTokenInstance } from '../../../src/core/instance/token-instance.ts';
import { backgroundLimits } from '../../../src/core/scheduler/batching/step-budget.ts';
import type { StepOutcome } from '../../../src/kernel/backend.ts';
import type { MemoryBus } from '../../../src/runtime/bus/memory-bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { InstanceLoop } from '../../../src/runtime/threads/instance-loop.ts';
import { backgroundWord, StepInterrupt } from '../../../src/runtime/threads/step-interrupt.ts';
import { publishTo, subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import type { FromInstance, ToInstance } from '../../../src/runtime/threads/thread-protocol.ts';
import type { Step } from '../../../src/util/step.ts';
import { baseConfig, expectedOutput, limits, promptOf, request } from '../../core/instance-world.ts';
import { FakeEngine } from '../../core/scheduler/fake-engine.ts';

const name = ['0', 1] as const;
let outer: MemoryBus;
let inner: MemoryBus;
beforeEach(() => {
  const hub = new MemoryHub();
  [outer, inner] = [hub.connect(), hub.connect()];
});
afterEach(() => outer.close());
const send = (message: ToInstance): void => publishTo(outer, 'command', name, message);
const onOutput = (handler: (message: FromInstance) => void) => subscribeTo(outer, 'output', name, handler);
const endpoint = () => ({ bus: inner, address: name[0], incarnation: name[1] });

/** Runs every step at once, and aborts it if the stop flag is set; `during` is called within each step. */
class ScriptedEngine {
  readonly #pages = new FakeEngine(baseConfig.pages, baseConfig.groups);
  readonly rows: number[] = [];
  readonly #during: (step: number, abort: Int32Array) => void;

  constructor(during: (step: number, abort: Int32Array) => void) {
    this.#during = during;
  }

  run(plan: Step, abort: Int32Array): StepOutcome {
    this.rows.push(plan.tokens.length);
    this.#during(this.rows.length, abort);
    return Atomics.load(abort, 0) === 0 ? { kind: 'done', result: this.#pages.run(plan) } : { kind: 'aborted' };
  }
}

test('a step aborted for a cancel is not planned again with the cancelled rows', async () => {
  const engine = new ScriptedEngine((step, abort) => {
    if (step !== 1) return;
    // As the gateway's thread does: the message, then the flag.
    send({ kind: 'cancel', id: 'gone' });
    Atomics.store(abort, 0, 1);
  });
  const machine = createTokenInstance(baseConfig);
  const kept = request('kept', promptOf(2, 20));
  const tokens: number[] = [];
  const ended = new Promise<void>((resolve) => {
    onOutput((message) => {
      if (message.kind !== 'events') return;
      for (const [id, event] of message.events) {
        if (event.kind === 'tokens') tokens.push(...event.tokens);
        if (event.kind === 'finished') resolve(expect(id).toBe('kept'));
      }
    });
  });
  new InstanceLoop(machine, engine, endpoint(), new StepInterrupt().polled, () => {}).start();
  send({ kind: 'submit', request: request('gone', promptOf(1, 90)) });
  send({ kind: 'submit', request: kept });
  await ended;
  expect(tokens).toEqual(expectedOutput(kept).tokens);
  expect(engine.rows).toEqual([90, 20, 1, 1, 1]);
  machine.check();
  const closed = new Promise<void>((resolve) => inner.watchConnection((up) => !up && resolve()));
  send({ kind: 'close' });
  await closed;
});

test('a step of batch jobs alone is marked, and stops for a new request, which runs next', async () => {
  const jobsOnly: number[] = [];
  const engine = new ScriptedEngine((step, abort) => {
    jobsOnly.push(Atomics.load(abort, backgroundWord));
    if (step !== 2) return;
    // As the gateway's thread does during a step of batch jobs.
    send({ kind: 'submit', request: request('now', promptOf(2, 20), { maxTokens: 1 }) });
    Atomics.store(abort, 0, 1);
  });
  const machine = createTokenInstance({ ...baseConfig, limits: { ...limits, background: backgroundLimits } });
  const ends: string[] = [];
  const ended = new Promise<void>((resolve) => {
    onOutput((message) => {
      if (message.kind !== 'events') return;
      for (const [id, event] of message.events) if (event.kind === 'finished') ends.push(id);
      if (ends.length === 2) resolve();
    });
  });
  new InstanceLoop(machine, engine, endpoint(), new StepInterrupt().polled, () => {}).start();
  send({ kind: 'submit', request: request('job', promptOf(1, 90), { batch: true }) });
  await ended;
  expect(ends).toEqual(['now', 'job']);
  // The job's second step was aborted; the next one has the new request, and rows of the job within their 1 % share.
  expect(jobsOnly.slice(0, 3)).toEqual([1, 1, 0]);
  expect(engine.rows[2]).toBeGreaterThanOrEqual(20);
  machine.check();
  const closed = new Promise<void>((resolve) => inner.watchConnection((up) => !up && resolve()));
  send({ kind: 'close' });
  await closed;
});

test('a request that arrives when a step is about to begin stops it, if the step is interruptible', async () => {
  const abort = new StepInterrupt().polled;
  const outcomes: string[] = [];
  const engine = new ScriptedEngine(() => outcomes.push(Atomics.load(abort, 0) === 0 ? 'done' : 'aborted'));
  const machine = createTokenInstance({ ...baseConfig, limits: { ...limits, background: backgroundLimits } });
  const ended = new Promise<void>((resolve) => {
    onOutput((message) => {
      if (message.kind !== 'events') return;
      for (const [id, event] of message.events) if (event.kind === 'finished' && id === 'now') resolve();
    });
  });
  let drains = 0;
  const drain = (): void => {
    inner.drain();
    // The last drain before the job's second step.
    if (outcomes.length !== 1 || ++drains !== 2) return;
    send({ kind: 'submit', request: request('now', promptOf(2, 20), { maxTokens: 1 }) });
    new StepInterrupt(abort).notify('request');
  };
  const bus = {
    drain,
    publish: inner.publish.bind(inner),
    subscribe: inner.subscribe.bind(inner),
    close: inner.close.bind(inner),
  };
  new InstanceLoop(machine, engine, { ...endpoint(), bus }, abort, () => {}).start();
  send({ kind: 'submit', request: request('job', promptOf(1, 90), { batch: true }) });
  await ended;
  expect(outcomes.slice(0, 3)).toEqual(['done', 'aborted', 'done']);
  machine.check();
  const closed = new Promise<void>((resolve) => inner.watchConnection((up) => !up && resolve()));
  send({ kind: 'close' });
  await closed;
});
