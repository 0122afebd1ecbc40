// Prefill and decode instances of a cluster over a bus: roles follow the load, short prompts are computed where they
// decode, and batch jobs run beside them. Nothing depends on how fast the machine computes.

import { expect, it } from 'vitest';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { AdmissionSettings } from '../../../src/core/router/admission/length-admission.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { type Answer, answerOf, livePrompt, liveRequest } from '../threads/instances.ts';
import { busMembers, serving, until } from './bus-members.ts';

const members = busMembers();
const hasKernels = loadNative() !== undefined;
const bits = ({ tokens, logprobs, end }: Answer) => ({ tokens, logprobs, end });

async function started(roles: readonly InstanceRole[], admission: AdmissionSettings, stepUs?: number) {
  const hub = new MemoryHub();
  const gateway = await members.gateway(hub.connect(), { admission, ...(stepUs !== undefined && { stepUs }) });
  for (const [i, role] of roles.entries()) {
    await members.instance(hub.connect(), `i${i}`, { role, roleSwitch: true });
    await until(() => serving(gateway) === i + 1);
  }
  return gateway;
}

/** Ids of requests are salts too: no instance has the prefix of an earlier one. */
let requests = 0;
const requestOf = (kind: number, prompt: number, tokens: number, batch = false) => {
  const id = String(++requests);
  return { ...liveRequest(id, livePrompt(kind, prompt), tokens), salt: id, batch };
};

/** Resolves with the answer. @param onToken runs at the first token, while the request decodes */
function answer(gateway: ClusterGateway, request: ReturnType<typeof requestOf>, onToken: () => void) {
  let isFirst = true;
  const submit: ClusterGateway['submit'] = (each, sink) =>
    gateway.submit(each, (event) => {
      if (event.kind === 'tokens' && isFirst) {
        isFirst = false;
        onToken();
      }
      sink(event);
    });
  return answerOf({ submit }, request).then(bits);
}

/**
 * Each decision sees certain loads. A window of days makes the prefill load smaller than the memory of any request that decodes; it is
 * larger than 0, the load of a decode pool without requests.
 */
const limits = { sustainUs: 0, dwellUs: 0, gain: 1.05, loadMin: 1e-18, intervalUs: 1, windowUs: 1e12 };
const slo = { ttft: { us: 1e9 }, tbt: { us: 1e9 } };

it.skipIf(!hasKernels)(
  'an instance takes the role of the fuller pool when the load shifts, and no answer changes',
  async () => {
    const admission: AdmissionSettings = { kind: 'none', slo, decodeUs: 1e7, roleSwitch: limits };
    const gateway = await started(['prefill', 'prefill', 'decode'], admission);
    const count = (role: InstanceRole) => gateway.roles().filter((each) => each === role).length;
    const answers: Promise<ReturnType<typeof bits>>[] = [];
    // A request arrives while another one decodes, until the decode pool has a second instance.
    const pump = (): void => {
      if (count('decode') < 2 && answers.length < 20) answers.push(answer(gateway, requestOf(1, 20, 40), pump));
    };
    pump();
    await until(() => count('decode') === 2);
    const [first, ...others] = await Promise.all(answers);
    expect(others.length).toBeGreaterThan(0);
    for (const each of others) expect(each).toEqual(first);
    // Requests of one token do not decode.
    while (count('prefill') < 2) await answerOf(gateway, requestOf(2, 100, 1));
    expect(count('decode')).toBe(1);
    expect(bits(await answerOf(gateway, requestOf(1, 20, 40)))).toEqual(first);
    await until(() => gateway.snapshot().pages.used === 0);
  },
);

it.skipIf(!hasKernels)(
  'short prompts are computed where they decode from the first one on, and batch jobs beside them',
  async () => {
    // The bound on a step admits every prompt of a chunk, whatever a step is predicted to take.
    const admission: AdmissionSettings = { kind: 'none', slo: undefined, decodeUs: 1e7, inlineTokens: 64 };
    const gateway = await started(['prefill', 'decode'], admission, 1e9);
    const computed = () => gateway.instances().map(({ computedPromptTokens }) => computedPromptTokens);
    const run = (batch: boolean) => answerOf(gateway, requestOf(3, 20, 30, batch)).then(bits);
    const inline = await run(false);
    await until(() => computed()[1] === 20);
    expect(computed()[0]).toBe(0);
    const [job, beside, long] = await Promise.all([run(true), run(false), answerOf(gateway, requestOf(4, 80, 4))]);
    expect([job, beside]).toEqual([inline, inline]);
    expect(long.end.kind).toBe('finished');
    // The prompt above the bound is computed by the prefill instance.
    await until(() => (computed()[0] ?? 0) >= 80);
    await until(() => gateway.snapshot().pages.used === 0);
  },
);
