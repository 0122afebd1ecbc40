// Learned prefill times: those of each instance, and for a new instance those of the others.

import { expect, test } from 'vitest';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { admissionKinds } from '../../../src/core/router/admission/admission-policy.ts';
import { TokenAdmission } from '../../../src/core/router/admission/token-admission.ts';
import { TokenPlacement } from '../../../src/core/router/placement/token-placement.ts';
import { batchLimits } from '../../../src/core/scheduler/executor/token-limits.ts';
import { greedy } from '../instance-world.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '' };

function learning() {
  const placement = new TokenPlacement(new Uint32Array(4));
  placement.begin(root, [0, 1, 2]);
  const { predictors } = placement.config;
  const prefill = (instance: number, tokens: number, us: number) => {
    const prompt = new Int32Array(tokens).fill(1);
    const rest = { maxTokens: 1, sampling: greedy, stopTokenIds: [], priority: 0, salt: '' };
    placement.forwarded(instance, { id: 'r', prompt, ...rest });
    placement.received(0, instance, 'r', { kind: 'started', cachedTokens: 0 });
    placement.received(us, instance, 'r', { kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined });
  };
  return { placement, prefill, us: () => predictors.map((each) => each.prefillUs(100, 0)) };
}

test('an instance without observations uses the prefill times of the others', () => {
  const { placement, prefill, us } = learning();
  const [guess = 0] = us();
  expect(us()).toEqual([guess, guess, guess]);
  for (let i = 0; i < 50; i++) prefill(0, 100, 1_000);
  const [fast = 0] = us();
  expect(fast).toBeCloseTo(1_000, -1);
  expect(us()).toEqual([fast, fast, fast]);
  for (let i = 0; i < 50; i++) prefill(1, 100, 9_000);
  expect(us()[1]).toBeCloseTo(9_000, -1);
  expect(us()[0]).toBe(fast);
  expect(us()[2]).toBeCloseTo(5_000, -1);
  placement.replaced(1);
  expect(us()).toEqual([fast, fast, fast]);
});

test('ignores the start that a decode instance reports: the prefill has ended by then', () => {
  const { placement, us } = learning();
  const before = us();
  const prompt = new Int32Array(100).fill(1);
  for (let i = 0; i < 50; i++) {
    placement.forwarded(0, {
      id: 'r',
      prompt,
      maxTokens: 2,
      sampling: greedy,
      stopTokenIds: [],
      priority: 0,
      salt: '',
    });
    placement.received(9, 1, 'r', { kind: 'started', cachedTokens: 0 });
    placement.received(10, 1, 'r', { kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined });
  }
  expect(us()).toEqual(before);
  expect(placement.observed).toBe(0);
});

test('one instance computes the prompt of a request with a KV budget', () => {
  const groups = { members: 2, tokensOver: 0, layers: 4 };
  const request = (rest: Pick<GenerationRequest, 'kvBudget'> = {}): GenerationRequest => ({
    ...{
      id: 'r',
      prompt: new Int32Array(100),
      maxTokens: 1,
      sampling: greedy,
      stopTokenIds: [],
      priority: 0,
      salt: '',
    },
    ...rest,
  });
  const mayPipeline = (budgetByDefault: boolean) => {
    const placement = new TokenPlacement(new Uint32Array(4));
    placement.begin(root, [0, 1], undefined, { ...groups, budgetByDefault });
    const all = [request(), request({ kvBudget: 50 }), request({ kvBudget: 'full' })];
    return all.map((one) => placement.mayPipeline(one));
  };
  expect(mayPipeline(false)).toEqual([true, false, true]);
  expect(mayPipeline(true)).toEqual([false, false, true]);
});

test('a request states whether its decode instance judges it once more: by the policy of its gateway, never for jobs', () => {
  const slo = { ttft: { us: 1e6 }, tbt: { us: 1e5 } };
  const one = { id: 'r', prompt: new Int32Array(9), maxTokens: 1, sampling: greedy, stopTokenIds: [], priority: 0 };
  for (const kind of admissionKinds) {
    const admission = new TokenAdmission({ kind, slo, decodeUs: 1 }, 2, batchLimits);
    admission.config([]);
    const forwarded = (batch: boolean) => admission.forwarded({ ...one, salt: '', batch });
    expect(forwarded(false).rechecks).toBe(kind === 'none' ? undefined : true);
    expect(forwarded(true).rechecks).toBeUndefined();
    expect(forwarded(false).tbtUsMax).toBe(1e5);
  }
});
