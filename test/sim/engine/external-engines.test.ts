// Instances that show themselves as external engines: what the conductor receives of them.
import { expect, it } from 'vitest';
import type { ConductorEvent } from '../../../src/core/protocol/events.ts';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { Float64Pool } from '../../../src/core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { ExternalEngines } from '../../../src/sim/engine/external-engines.ts';

type Event = ConductorEvent<LengthRequest>;
const trace = { index: 0, arrivalUs: 0, inputTokens: 100, outputTokens: 8, blocks: new Int32Array(0) };
const request = new LengthRequest(trace, 16, new Float64Pool(), 'a');
const tokens: GenerationEvent = { kind: 'tokens', tokens: new Int32Array(1), logprobs: undefined };
const started: GenerationEvent = { kind: 'started', cachedTokens: 32 };
const sent = (instance: number, event: GenerationEvent): Event => ({
  kind: 'generationEvent',
  instance,
  id: 'a',
  event,
});

/** Kinds of the events that the conductor receives. */
const kinds = (events: readonly Event[]) =>
  events.map((event) => (event.kind === 'generationEvent' ? event.event.kind : event.kind));

it('reports the start of a prefill with its first tokens, and how long it took', () => {
  const engines = new ExternalEngines(1);
  engines.forwarded(1_000, request, 0, undefined);
  expect(engines.received(2_000, sent(0, started))).toEqual([]);
  const first = engines.received(41_000, sent(0, tokens));
  expect(first).toEqual([sent(0, { kind: 'started', cachedTokens: 32, prefillUs: 40_000 }), sent(0, tokens)]);
  expect(kinds(engines.received(61_000, sent(0, tokens)))).toEqual(['tokens']);
  expect(kinds(engines.received(81_000, sent(0, { kind: 'finished', reason: 'length' })))).toEqual(['finished']);
  const untaught = new ExternalEngines(1).prefills.times[0];
  expect(engines.prefills.times[0].prefillUs(100, 32)).toBeGreaterThan(untaught.prefillUs(100, 32));
  expect(engines.prefills.size).toBe(0);
});

it('reports it with the end of the prefill where another engine decodes', () => {
  const engines = new ExternalEngines(2);
  engines.forwarded(0, request, 0, 1);
  engines.received(0, sent(0, started));
  const prefilled: Event = { kind: 'prefilled', instance: 0, id: 'a' };
  expect(kinds(engines.received(30_000, prefilled))).toEqual(['started', 'prefilled']);
  expect(kinds(engines.received(40_000, sent(1, tokens)))).toEqual(['tokens']);
});

it('forgets a cancelled request, and passes other events on', () => {
  const engines = new ExternalEngines(1);
  engines.forwarded(0, request, 0, undefined);
  engines.received(0, sent(0, started));
  engines.cancelled(10, 0, 'a');
  expect(kinds(engines.received(20, sent(0, tokens)))).toEqual(['tokens']);
  expect(kinds(engines.received(30, { kind: 'wake' }))).toEqual(['wake']);
});
