// Hand-offs between instances of unequal memory: each instance requires memory for its part of the request, and no more.
import { describe, expect, it } from 'vitest';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import { tokenRequests } from '../../../src/core/router/token-requests.ts';
import { promptOf, request } from '../instance-world.ts';

type Instances = readonly (readonly [InstanceRole, number])[];

function submit(instances: Instances, promptTokens: number, maxTokens: number, before = 0) {
  const conductor = new Conductor<GenerationRequest>({
    instances: instances.map(([role, capacityTokens]) => ({ role, capacityTokens })),
    queueMax: 100,
    requests: tokenRequests,
  });
  const send = (id: string, tokens: number, outputs: number) =>
    conductor.step(0, { kind: 'submit', request: request(id, promptOf(1, tokens), { maxTokens: outputs }) });
  for (let i = 0; i < before; i++) send(`before ${i}`, 10, 10);
  const effects = send('long', promptTokens, maxTokens);
  conductor.check();
  const forward = effects.find((effect) => effect.kind === 'forward');
  return forward?.kind === 'forward' ? [forward.instance, forward.decodeAt] : effects;
}

describe('a request whose prompt is handed off', () => {
  const unequal: Instances = [
    ['prefill', 1000],
    ['decode', 300],
    ['decode', 1000],
  ];

  it('is decoded where it fits, although an instance that is too small is less loaded', () => {
    expect(submit(unequal, 200, 200, 1)).toEqual([0, 2]);
    expect(submit(unequal, 200, 50)).toEqual([0, 1]);
  });

  it('is computed where its prompt alone fits', () => {
    const small: Instances = [
      ['prefill', 100],
      ['prefill', 250],
      ['decode', 1000],
    ];
    expect(submit(small, 200, 700)).toEqual([1, 2]);
    expect(submit(small, 90, 700)).toEqual([0, 2]);
    expect(submit(small, 260, 100)).toMatchObject([
      { event: { code: 'CONTEXT_TOO_LONG', cause: { promptTokens: 260, outputTokensMax: 1, capacityTokens: 100 } } },
    ]);
  });

  it('is refused with the figures of a decode instance if no instance can hold it', () => {
    expect(submit(unequal, 600, 600)).toMatchObject([
      {
        kind: 'emit',
        event: {
          code: 'CONTEXT_TOO_LONG',
          cause: { reason: 'length', promptTokens: 600, outputTokensMax: 600, capacityTokens: 1000 },
        },
      },
    ]);
  });

  it('goes to a mixed instance if only that one can hold it', () => {
    expect(submit([...unequal.slice(0, 2), ['mixed', 1000]], 200, 500)).toEqual([2, undefined]);
  });
});
