// An instance and a fake engine that a test controls: submits, cancels, aborts, and the events of every request.

import { expect } from 'vitest';
import {
  createTokenInstance,
  type TokenInstance,
  type TokenInstanceConfig,
} from '../../src/core/instance/token-instance.ts';
import type { InstanceEffect } from '../../src/core/protocol/effects.ts';
import type { InstanceEvent } from '../../src/core/protocol/events.ts';
import type { PinId } from '../../src/core/protocol/ids.ts';
import type { PinState } from '../../src/core/protocol/pin-order.ts';
import type { GenerationEvent, GenerationRequest, SamplingParams } from '../../src/core/protocol/ports.ts';
import type { SparseWork } from '../../src/core/protocol/step-shape.ts';
import type { BatchLimits } from '../../src/core/scheduler/batching/step-budget.ts';
import { keptAfter, pageTokens } from '../../src/util/step.ts';
import { extraOf, FakeEngine, logprobOf, nextToken } from './scheduler/fake-engine.ts';

export const greedy: SamplingParams = {
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
  logitBias: [],
  seed: [1, 0],
  topLogprobs: undefined,
  promptLogprobs: false,
};

export function request(
  id: string,
  prompt: Iterable<number>,
  rest: Partial<GenerationRequest> = {},
): GenerationRequest {
  return {
    id,
    prompt: Int32Array.from(prompt),
    maxTokens: 4,
    sampling: greedy,
    stopTokenIds: [],
    priority: 0,
    salt: '',
    ...rest,
  };
}

/** `length` tokens that differ from those of another `kind` from the start. */
export function promptOf(kind: number, length: number): number[] {
  return Array.from({ length }, (_, i) => (kind * 37 + i * 11 + ((i * i) % 7)) % 1000);
}

export const limits: BatchLimits = {
  tokensMax: 256,
  logitRowsMax: 96,
  sequencesMax: 16,
  stepUsDecoding: 50_000,
  stepUsPrefill: 100_000,
};

export const baseConfig: TokenInstanceConfig = {
  pages: 400,
  groups: [{ layers: 2, window: undefined }],
  eviction: 'lru',
  limits,
  queueMax: 512,
  root: { modelFingerprint: 'm', weightForm: 'f32', inputForm: 'f32', kvType: 'f32', rope: '' },
  hashKey: new Uint32Array(4),
};

export interface ReceivedEvents {
  readonly events: GenerationEvent[];
  readonly tokens: number[];
}

type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;

export class World {
  readonly instance: TokenInstance;
  readonly engine: FakeEngine;
  readonly received = new Map<string, ReceivedEvents>();
  readonly ignored: string[] = [];
  readonly faults: string[] = [];
  readonly pins: (readonly [PinId, PinState])[] = [];
  nowUs = 0;
  running: RunStep | undefined;
  /** Pages that host memory copies while the running step computes them. */
  #stores: Extract<InstanceEffect, { kind: 'storePages' }> | undefined;
  abortRequests = 0;
  /** Most pages that sequences held at once. */
  usedPagesMax = 0;
  /** Rows of each step that ended well. */
  readonly stepRows: number[] = [];

  readonly #others: (effect: InstanceEffect) => void;

  /** @param others receives the effects of transfers between instances */
  constructor(config: Partial<TokenInstanceConfig> = {}, others: (effect: InstanceEffect) => void = () => {}) {
    this.#others = others;
    const all = { ...baseConfig, ...config };
    this.instance = createTokenInstance(all);
    const blockPages = all.groups.reduce((sum, { layers }) => sum + layers, 0);
    const hostPages = all.tiers === undefined ? 0 : (all.tiers.hostBlocks + 1) * blockPages;
    const { workers = 1 } = all.attentionWorkers ?? {};
    const receivePages = workers * (all.handOff?.receivePages ?? 0);
    this.engine = new FakeEngine(all.pages + hostPages + receivePages, all.groups);
  }

  /** One event, its effects, and every invariant. */
  deliver(event: InstanceEvent): void {
    for (const effect of this.instance.step(this.nowUs, event)) this.#apply(effect);
    this.instance.check();
    this.usedPagesMax = Math.max(this.usedPagesMax, this.instance.snapshot().pages.used);
  }

  submit(...requests: readonly GenerationRequest[]): void {
    for (const one of requests) this.deliver({ kind: 'submit', request: one });
  }

  cancel(id: string): void {
    this.deliver({ kind: 'cancel', id });
  }

  /** The running step succeeds after the time that a small machine would take. */
  finishStep(): void {
    const running = this.#take();
    this.nowUs += 1_000 + running.plan.tokens.length * 200;
    this.stepRows.push(running.plan.tokens.length);
    const result = this.engine.run(running.plan);
    this.#storeComputed();
    this.deliver({ kind: 'stepDone', step: running.step, result });
  }

  abortStep(rowsWritten: number): void {
    const running = this.#take();
    this.nowUs += 500;
    this.engine.abort(running.plan, rowsWritten);
    this.#storeComputed();
    this.deliver({ kind: 'stepAborted', step: running.step });
  }

  failStep(message: string): void {
    const running = this.#take();
    this.#stores = undefined;
    this.deliver({ kind: 'stepFailed', step: running.step, message });
  }

  /** Runs until no request is left; fails after `steps` steps. */
  finishAll(steps = 20_000): void {
    for (let i = 0; this.running !== undefined; i++) {
      if (i === steps)
        throw new Error(`Requests are still running after ${steps} steps: ${JSON.stringify(this.instance.snapshot())}`);
      this.finishStep();
    }
  }

  /** The events of a request; throws when there are none. */
  of(id: string): ReceivedEvents {
    const received = this.received.get(id);
    if (received === undefined) throw new Error(`No events of ${id}`);
    return received;
  }

  lastOf(id: string): GenerationEvent | undefined {
    return this.of(id).events.at(-1);
  }

  /** Of an aborted step, some copied pages have no defined contents. */
  #storeComputed(): void {
    const { from = [], to = [] } = this.#stores ?? {};
    for (const [i, page] of to.entries()) this.engine.copy(page, this.engine, from[i] as number);
    this.#stores = undefined;
  }

  #take(): RunStep {
    const running = this.running;
    if (running === undefined) throw new Error('No step is in flight');
    this.running = undefined;
    return running;
  }

  #apply(effect: InstanceEffect): void {
    switch (effect.kind) {
      case 'emit': {
        const received = this.received.get(effect.id) ?? { events: [], tokens: [] };
        this.received.set(effect.id, received);
        received.events.push(effect.event);
        if (effect.event.kind === 'tokens') received.tokens.push(...effect.event.tokens);
        break;
      }
      case 'runStep':
        expect(this.running).toBeUndefined();
        expect({ ...effect.shape, sparse: effect.shape.sparse ?? noSparseWork }).toEqual(shapeOf(effect.plan));
        this.running = effect;
        break;
      case 'copyPages':
      case 'loadPages':
        for (const [i, page] of effect.to.entries()) this.engine.copy(page, this.engine, effect.from[i] as number);
        break;
      case 'storePages':
        expect(this.#stores).toBeUndefined();
        this.#stores = effect;
        break;
      case 'abortStep':
        expect(effect.step).toBe(this.running?.step);
        this.abortRequests++;
        break;
      case 'ignored':
        this.ignored.push(effect.message);
        break;
      case 'pinUpdated':
        this.pins.push([effect.id, effect.state]);
        break;
      case 'fault':
        this.faults.push(effect.message);
        break;
      default:
        this.#others(effect);
    }
  }
}

const noSparseWork: SparseWork = {
  ...{ skippedKeyRows: 0, skippedDecodeKeys: 0, skippedPerStep: 0 },
  ...{ scoredKeyRows: 0, scoredKeys: 0, keptTokens: 0 },
};

/** What the sparse layers of a step do, by the slots, selections and chosen pages that it names. */
function sparseWorkOf(plan: RunStep['plan']): SparseWork {
  const { positions, rowStart, groups, sparse = [], selections = [], pageSelections = [] } = plan;
  const work = { ...noSparseWork };
  for (const { sequence, group, budget } of pageSelections) {
    const rows = positions.subarray(rowStart[sequence], rowStart[sequence + 1]);
    for (const position of rows) {
      const pages = Math.floor(position / pageTokens) + 1;
      const read = pages <= budget ? position + 1 : (budget - 1) * pageTokens + (position % pageTokens) + 1;
      // The bound of a page counts as a token.
      const skipped = (groups[group]?.layers ?? 0) * (position + 1 - read - pages);
      work.skippedKeyRows += skipped;
      if (rows.length === 1) work.skippedDecodeKeys += skipped;
    }
  }
  for (const { sequence, kept, budget, compactEvery } of sparse) {
    const rows = positions.subarray(rowStart[sequence], rowStart[sequence + 1]);
    for (const [layer, most] of budget.entries()) {
      let filled = kept[layer] as number;
      if (rows.length === 1 && compactEvery === 0 && filled === most) work.skippedPerStep++;
      for (const position of rows) {
        // A row reads the slots and its own token, which replaces another one where all slots are full.
        const read = compactEvery === 0 && filled === most ? most : filled + 1;
        work.skippedKeyRows += position + 1 - read;
        if (rows.length === 1) work.skippedDecodeKeys += position + 1 - read;
        filled = keptAfter(filled, most, compactEvery, 1);
      }
    }
  }
  for (const { sequence, budget, observed } of selections) {
    const tokens = (positions[(rowStart[sequence + 1] as number) - 1] as number) + 1;
    for (const most of budget) {
      for (let row = Math.max(0, tokens - observed); row < tokens; row++) work.scoredKeyRows += row + 1;
      work.scoredKeys += tokens;
      work.keptTokens += Math.min(tokens, most);
    }
  }
  return work;
}

/** The shape of a step, by its rows. */
function shapeOf(plan: RunStep['plan']): RunStep['shape'] {
  const { positions, rowStart, logitRows } = plan;
  const shape = { rows: positions.length, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: logitRows.length };
  for (const position of positions) shape.keyRows += position + 1;
  for (const [i, from] of rowStart.subarray(0, -1).entries()) {
    if (rowStart[i + 1] !== from + 1) continue;
    shape.decodeRows++;
    shape.decodeKeys += Number(positions[from]) + 1;
  }
  return { ...shape, sparse: sparseWorkOf(plan) };
}

/** The output of a request that runs alone, from the definition and not from an instance. */
export function expectedOutput(one: GenerationRequest): {
  readonly tokens: number[];
  readonly reason: 'stop' | 'length';
} {
  const all = [...one.prompt];
  const tokens: number[] = [];
  const bias = one.sampling.logitBias.reduce((sum, [, value]) => sum + value, 0);
  const hasPenalty = one.sampling.repetitionPenalty !== 1 || one.sampling.presencePenalty !== 0;
  while (tokens.length < one.maxTokens) {
    const seen = hasPenalty ? [...new Set(all)] : [];
    const counts = seen.map((token) => tokens.filter((other) => other === token).length);
    const token = nextToken(all, one.sampling.seed[0], tokens.length, extraOf(seen, counts, bias));
    tokens.push(token);
    all.push(token);
    if (one.stopTokenIds.includes(token)) return { tokens, reason: 'stop' };
  }
  return { tokens, reason: 'length' };
}

/** Checks all events of a request: accepted, started, prompt log-probabilities in order, tokens, finished. */
export function expectComplete(world: World, one: GenerationRequest): void {
  const { events, tokens } = world.of(one.id);
  const expected = expectedOutput(one);
  expect(tokens, `tokens of ${one.id}`).toEqual(expected.tokens);
  expect(events[0]).toEqual({ kind: 'accepted' });
  expect(events[1]?.kind).toBe('started');
  expect(events.at(-1)).toEqual({ kind: 'finished', reason: expected.reason });
  expect(events.filter((event) => event.kind === 'started' || event.kind === 'finished')).toHaveLength(2);
  expectLogprobs(one, events, tokens);
}

function expectLogprobs(one: GenerationRequest, events: readonly GenerationEvent[], tokens: readonly number[]): void {
  const all = [...one.prompt, ...tokens];
  const scored: number[] = [];
  const top: number[] = [];
  for (const event of events) {
    const logprobs = event.kind === 'prompt-logprobs' || event.kind === 'tokens' ? event.logprobs : undefined;
    if (event.kind === 'tokens') expect(logprobs === undefined).toBe(one.sampling.topLogprobs === undefined);
    if (logprobs === undefined) continue;
    expect(logprobs.topTokens).toHaveLength(logprobs.logprobs.length * logprobs.width);
    scored.push(...logprobs.logprobs);
    top.push(...logprobs.topLogprobs);
  }
  const from = one.sampling.promptLogprobs ? 1 : one.prompt.length;
  const to = one.sampling.topLogprobs === undefined ? one.prompt.length : all.length;
  const positions = Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
  expect(scored).toEqual(positions.map((p) => logprobOf(all.slice(0, p), all[p] as number)));
  const width = one.sampling.topLogprobs ?? 0;
  expect(top).toEqual(positions.flatMap((p) => Array.from({ length: width }, (_, k) => logprobOf(all.slice(0, p), k))));
}
