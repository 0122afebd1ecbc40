// A simulated cluster of instances that hand prompts off; the test selects the order of messages and step ends.
import { expect } from 'vitest';
import {
  createLengthInstance,
  type LengthEvent,
  type LengthInstance,
} from '../../../src/core/instance/length-instance.ts';
import type { BorrowingConfig } from '../../../src/core/lending/debtor/borrower-config.ts';
import { defaultLendingTimes } from '../../../src/core/lending/times.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import { Float64Pool } from '../../../src/core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { blockTokens, cost } from '../scheduler/small-cost.ts';

type Effect = InstanceEffect<undefined, LengthRequest>;

function borrowingOf(instance: number): BorrowingConfig {
  const policy = {
    ...{ lentShareMax: 0.75, lowWaterBlocks: 1, highWaterBlocks: 4, recallBlocks: 1, loanBlocksMin: 1, lookAheadUs: 0 },
    remoteAttentionPermilleMax: 300,
  };
  const figures = { stagingBlocks: 0, borrowableBlocks: 20, rangeBlocks: 1 };
  return { instance, policy, times: defaultLendingTimes, ...figures };
}

/** The last two instances decode, the others prefill. Messages are delivered and steps end when the test says so. */
export class HandOffWorld {
  readonly instances: readonly LengthInstance[];
  readonly received = new Map<string, string[]>();
  readonly requests: LengthRequest[] = [];
  /** Messages in transit. */
  readonly messages: { readonly to: number; readonly event: LengthEvent }[] = [];
  /** Steps in flight, by instance. */
  readonly steps = new Map<number, number>();
  /** Tokens streamed, by request. */
  readonly streamed = new Map<string, number>();
  /** Tokens streamed, by sender and request. */
  readonly #streamedFrom = new Map<string, number>();
  /** Chunks whose activations were sent to the next member: request, member, last token. */
  readonly #sentChunks = new Set<string>();
  /** Steps that began before their activations were sent, and those that ended before. */
  readonly ahead = { begun: 0, inVain: 0 };
  /** Chunks that the steps in flight wait for, by instance. */
  readonly #awaitedChunks = new Map<number, string>();
  nowUs = 0;

  readonly #prefills: number;
  readonly #announcesChunks: boolean;

  /** Instances with backpressure. */
  readonly backpressured = new Set<number>();
  /** Requests exempt from backpressure, because a chunk of them has begun. */
  readonly begunRequests = new Set<string>();

  /**
   * @param announcesChunks members get `activationsPending` when the previous member begins a chunk
   * @param borrows prompts start with a receive buffer; there is no gManager, so no instance gets a loan
   */
  constructor(layerWise: boolean, receiveTokens: number, prefills = 2, announcesChunks = true, borrows = false) {
    this.#prefills = prefills;
    this.#announcesChunks = announcesChunks;
    const handOff = { layerWise, receiveTokens, rechecksAdmission: false };
    const limits = { tokensMax: 64, logitRowsMax: 9, sequencesMax: 8, stepUsDecoding: 5_000, stepUsPrefill: 5_000 };
    const config = { cost, blockTokens, blocks: 20, eviction: 'lru', limits, coalesce: false, handOff } as const;
    this.instances = Array.from({ length: prefills + 2 }, (_, i) =>
      createLengthInstance({
        ...config,
        queueMax: 1_000,
        borrowing: borrows ? borrowingOf(i) : undefined,
        isBackpressured: (id) => this.backpressured.has(i) && !this.begunRequests.has(id),
      }),
    );
  }

  /** @param members of the group that computes the prompt; fewer than 2: one instance computes it */
  submit(inputTokens: number, outputTokens: number, members: readonly number[] = []): void {
    const index = this.requests.length;
    const trace = { index, arrivalUs: this.nowUs, inputTokens, outputTokens, blocks: new Int32Array(0) };
    const request = new LengthRequest(trace, blockTokens, new Float64Pool());
    this.requests.push(request);
    this.received.set(request.id, []);
    const decodeAt = this.#prefills + (index % 3 === 0 ? 1 : 0);
    const group = members.length < 2 ? undefined : { members, chunkTokens: 32, decodeAt };
    const to = members[0] ?? index % this.#prefills;
    this.messages.push({ to, event: { kind: 'submit', request, decodeAt, group } });
  }

  /** True once the submit was delivered: a cancel never overtakes it. */
  isSubmitted(id: string): boolean {
    return !this.messages.some(({ event }) => event.kind === 'submit' && event.request.id === id);
  }

  cancel(id: string): void {
    for (let to = 0; to < this.instances.length; to++) this.messages.push({ to, event: { kind: 'cancel', id } });
  }

  /** Delivers a message or ends a step; false if there is none. */
  advance(choice: number, doubled: boolean, lost: boolean): boolean {
    const options = this.messages.length + this.steps.size;
    if (options === 0) return false;
    const at = choice % options;
    if (at < this.messages.length) {
      const message = this.messages[at];
      if (message !== undefined && !lost) this.deliver(message.to, message.event);
      // A submit that is repeated after the end of its request would be a new request.
      if (!doubled || lost || message?.event.kind === 'submit') this.messages.splice(at, 1);
    } else {
      const [to, step] = [...this.steps][at - this.messages.length] ?? [0, 0];
      this.steps.delete(to);
      const awaited = this.#awaitedChunks.get(to);
      const inVain = awaited !== undefined && !this.#sentChunks.has(awaited);
      if (inVain) this.ahead.inVain++;
      this.deliver(to, { kind: 'stepDone', step, result: inVain ? { failedSequences: [0] } : undefined });
    }
    return true;
  }

  deliver(to: number, event: LengthEvent): void {
    this.nowUs += 100;
    const instance = this.instances[to];
    for (const effect of instance?.step(this.nowUs, event) ?? []) this.#apply(to, effect);
    instance?.check();
  }

  #apply(from: number, effect: Effect): void {
    switch (effect.kind) {
      case 'runStep':
        this.steps.set(from, effect.step);
        this.#begin(from, effect);
        break;
      case 'emit':
        if (effect.event.kind !== 'accepted') this.received.get(effect.id)?.push(effect.event.kind);
        break;
      case 'send':
        this.messages.push({ to: effect.to, event: { kind: 'peer', from, message: effect.message } });
        break;
      case 'stream': {
        const { id, to, tokens, firstEvents } = effect;
        expect(tokens).toBeGreaterThanOrEqual(0);
        this.#stream(from, id, tokens);
        if (firstEvents !== undefined)
          this.messages.push({ to, event: { kind: 'promptReceived', from, id, firstEvents } });
        break;
      }
      case 'haltStream':
        this.#stream(from, effect.id, effect.from - (this.#streamedFrom.get(`${from} ${effect.id}`) ?? 0));
        break;
      case 'sendActivations': {
        const { id, to, chunk } = effect;
        this.#sentChunks.add(`${id} ${to} ${chunk.tokens}`);
        this.messages.push({ to, event: { kind: 'activations', id, ...chunk } });
        break;
      }
      case 'fault':
        throw new Error(effect.message);
    }
  }

  #stream(from: number, id: string, tokens: number): void {
    this.streamed.set(id, (this.streamed.get(id) ?? 0) + tokens);
    const own = `${from} ${id}`;
    this.#streamedFrom.set(own, (this.#streamedFrom.get(own) ?? 0) + tokens);
  }

  /** Chunks of pipelines are announced when their steps begin. */
  #begin(at: number, { range, activationsOut }: Extract<Effect, { kind: 'runStep' }>): void {
    this.#awaitedChunks.delete(at);
    const [running] = this.instances[at]?.inFlight ?? [];
    if (range === undefined || running === undefined) return;
    const { id, sequence } = running;
    if (activationsOut !== undefined && this.#announcesChunks)
      this.messages.push({ to: activationsOut.to, event: { kind: 'activationsPending', id, ...activationsOut.chunk } });
    if (range.index === 0) return;
    const awaited = `${id} ${at} ${sequence.computed + sequence.planned}`;
    this.#awaitedChunks.set(at, awaited);
    if (!this.#sentChunks.has(awaited)) this.ahead.begun++;
  }

  /** Delivers all messages and ends all steps, in order. */
  finish(): void {
    for (let i = 0; i < 20_000 && this.advance(0, false, false); i++);
    expect([this.messages.length, this.steps.size]).toEqual([0, 0]);
  }

  pagesUsed(): number[] {
    return this.instances.map((instance) => instance.snapshot().pages.used);
  }
}
