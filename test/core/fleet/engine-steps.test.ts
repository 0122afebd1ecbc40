// Steps of the engines of a gateway: of hand-offs, and of requests and engines that end early.
import { expect, it } from 'vitest';
import { EngineSteps } from '../../../src/core/fleet/engine-steps.ts';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { request } from '../instance-world.ts';

const prompt = Array.from({ length: 100 }, (_, i) => i);
const tokens = (count: number) => ({ kind: 'tokens', tokens: new Int32Array(count), logprobs: undefined }) as const;

function open() {
  const steps = new EngineSteps((instance) => instance < 2);
  const event = (nowUs: number, instance: number, id: string, event: GenerationEvent): void =>
    steps.received(nowUs, { kind: 'generationEvent', instance, id, event });
  const take = () => [...steps.take()].flatMap(([instance, own]) => own.map(({ rows }) => [instance, ...rows]));
  return { steps, event, take };
}

it('ends the step of a prompt at the prefill engine, and begins with the second token at the decode engine', () => {
  const { steps, event, take } = open();
  steps.forwarded(0, 0, request('a', prompt), 1);
  event(40_000, 0, 'a', { kind: 'started', cachedTokens: 64 });
  steps.received(40_000, { kind: 'prefilled', instance: 0, id: 'a' });
  event(60_000, 1, 'a', tokens(1));
  event(90_000, 1, 'a', tokens(1));
  event(90_100, 1, 'a', { kind: 'finished', reason: 'length' });
  expect(take()).toEqual([
    [0, ['a', 64, 36]],
    [1, ['a', 100, 1]],
  ]);
});

it('forgets what is cancelled, released or handed off by a failed engine, and leaves own instances out', () => {
  const { steps, event, take } = open();
  for (const id of ['cancelled', 'released', 'handed'])
    steps.forwarded(0, 0, request(id, prompt), id === 'handed' ? 1 : undefined);
  steps.forwarded(0, 2, request('own', prompt), undefined);
  steps.cancelled('cancelled');
  steps.received(1_000, { kind: 'released', instance: 0, id: 'released', why: 'broke' });
  steps.received(2_000, { kind: 'instanceFailed', instance: 1 });
  for (const [i, id] of ['cancelled', 'released', 'handed'].entries()) event(10_000 * i, 0, id, tokens(1));
  event(40_000, 2, 'own', tokens(1));
  event(50_000, 1, 'handed', tokens(1));
  expect(take()).toEqual([]);
});
