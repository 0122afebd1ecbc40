// Messages about requests that outgrow their instance: repeated, duplicate, late, or about failed instances.

import { describe, expect, it } from 'vitest';
import { createLengthInstance } from '../../../src/core/instance/length-instance.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent } from '../../../src/core/protocol/events.ts';
import { StandbyFleet } from '../../../src/core/router/migration/standby-fleet.ts';
import { Float64Pool } from '../../../src/core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { blockTokens, cost } from '../scheduler/small-cost.ts';

const blocks = 6;
const reportUs = 1_000;

/** One instance of six blocks, whose steps end immediately. */
class SmallInstance {
  readonly instance = createLengthInstance({
    ...{ cost, blockTokens, blocks, eviction: 'lru', coalesce: false, queueMax: 10, reportUs },
    limits: { tokensMax: 256, logitRowsMax: 9, sequencesMax: 8, stepUsDecoding: 1e6, stepUsPrefill: 1e6 },
    handOff: { layerWise: true, receiveTokens: 0, rechecksAdmission: false },
    migration: { mark: 1, capacityTokens: 2 * blocks * blockTokens },
  });
  #nowUs = 0;

  deliver(
    event: InstanceEvent<LengthRequest, undefined>,
    atUs = this.#nowUs,
  ): InstanceEffect<undefined, LengthRequest>[] {
    this.#nowUs = atUs;
    const effects = [...this.instance.step(atUs, event)];
    this.instance.check();
    const step = effects.find((effect) => effect.kind === 'runStep');
    return step === undefined
      ? effects
      : [...effects, ...this.deliver({ kind: 'stepDone', step: step.step, result: undefined })];
  }

  /** Submits a request whose prompt fills all blocks but one, and which may outgrow the instance. */
  grow(): InstanceEffect<undefined, LengthRequest>[] {
    const inputTokens = (blocks - 1) * blockTokens;
    const trace = { index: 0, arrivalUs: 0, inputTokens, outputTokens: 2 * blockTokens, blocks: new Int32Array(0) };
    const request = new LengthRequest(trace, blockTokens, new Float64Pool());
    return this.deliver({ kind: 'submit', request });
  }
}

const sent = (effects: readonly InstanceEffect<undefined, LengthRequest>[]) =>
  effects.flatMap((effect) => (effect.kind === 'send' ? [`${effect.message.kind} ${effect.to}`] : []));

describe('an instance whose request outgrows it', () => {
  it('reports that it outgrows, again with every report, until it gets its target', () => {
    const small = new SmallInstance();
    const outgrows = { kind: 'outgrows', id: '0', tokens: (blocks + 1) * blockTokens };
    expect(small.grow()).toContainEqual(outgrows);
    expect(small.deliver({ kind: 'wake' }, reportUs)).toContainEqual(outgrows);
    small.deliver({ kind: 'migrate', id: '0', to: 3, incarnation: 0 });
    expect(small.deliver({ kind: 'wake' }, 2 * reportUs)).not.toContainEqual(outgrows);
  });

  it('reserves memory for all of its tokens there, once, and frees its blocks when they are received', () => {
    const small = new SmallInstance();
    small.grow();
    const effects = small.deliver({ kind: 'migrate', id: '0', to: 3, incarnation: 0 });
    const [reserve] = effects.flatMap((effect) => (effect.kind === 'send' ? [effect.message] : []));
    expect(reserve).toMatchObject({ kind: 'reserve', id: '0', tokens: blocks * blockTokens + 1 });
    expect(small.deliver({ kind: 'migrate', id: '0', to: 3, incarnation: 0 })).toEqual([]);
    const streamed = small.deliver({ kind: 'peer', from: 3, message: { kind: 'reserved', id: '0' } });
    expect(streamed).toMatchObject([{ kind: 'stream', to: 3, tokens: blocks * blockTokens + 1, firstEvents: [] }]);
    small.deliver({ kind: 'peer', from: 3, message: { kind: 'received', id: '0' } });
    expect(small.instance.snapshot().pages.used).toBe(0);
    expect(small.instance.components.migrator?.totals).toMatchObject({ moved: 1, stalls: 1 });
  });

  it('ignores a finished request and notifies the receiver on cancel', () => {
    const small = new SmallInstance();
    expect(sent(small.deliver({ kind: 'migrate', id: '0', to: 3, incarnation: 0 }))).toEqual([]);
    small.grow();
    small.deliver({ kind: 'migrate', id: '0', to: 3, incarnation: 0 });
    expect(sent(small.deliver({ kind: 'cancel', id: '0' }))).toEqual(['release 3']);
    expect(small.instance.snapshot().pages.used).toBe(0);
  });
});

/** The effects of a fleet so far, as text. */
class SmallFleet extends StandbyFleet {
  readonly #effectTexts: string[] = [];

  constructor(...capacities: readonly number[]) {
    super([{ capacityTokens: 10 }, ...capacities.map((capacityTokens) => ({ capacityTokens, standby: true }))], {
      redirect: () => ({ incarnation: 0 }),
    });
  }

  get effectTexts(): readonly string[] {
    for (const effect of this.takeEffects())
      this.#effectTexts.push(
        effect.kind === 'startInstance'
          ? `start ${effect.instance}`
          : `${effect.id}: ${effect.instance} to ${effect.to}`,
      );
    return this.#effectTexts;
  }
}

describe('the fleet', () => {
  it('repeats a migrate order once the instance runs, and starts the instance once', () => {
    const fleet = new SmallFleet(100);
    const move = { id: 'a', from: 0, tokens: 50 };
    fleet.outgrows(move);
    fleet.outgrows(move);
    fleet.instanceJoined(1);
    fleet.outgrows(move);
    expect(fleet.effectTexts).toEqual(['start 1', 'a: 0 to 1', 'a: 0 to 1']);
  });

  it('restarts a lost instance for requests that need it again', () => {
    const fleet = new SmallFleet(100);
    fleet.outgrows({ id: 'a', from: 0, tokens: 50 });
    fleet.instanceJoined(1);
    fleet.instanceFailed(1);
    fleet.outgrows({ id: 'a~2', from: 0, tokens: 60 });
    fleet.instanceJoined(1);
    expect(fleet.effectTexts).toEqual(['start 1', 'a: 0 to 1', 'start 1', 'a~2: 0 to 1']);
    expect(fleet.started).toBe(2);
  });

  it('grants freed capacity to the request that has waited longest', () => {
    const fleet = new SmallFleet(100);
    fleet.outgrows({ id: 'a', from: 0, tokens: 60 });
    fleet.instanceJoined(1);
    fleet.outgrows({ id: 'b', from: 0, tokens: 70 });
    fleet.outgrows({ id: 'c', from: 0, tokens: 30 });
    expect(fleet.effectTexts).toEqual(['start 1', 'a: 0 to 1']);
    fleet.ended('a');
    expect(fleet.effectTexts.slice(2)).toEqual(['b: 0 to 1', 'c: 0 to 1']);
    fleet.check();
  });
});
