// Prefill and decode instances of a cluster over a bus: roles follow a shifting load, short prompts are computed where they
// decode, and batch jobs give way.
import { beforeAll, expect, it } from 'vitest';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { AdmissionSettings } from '../../../src/core/router/admission/length-admission.ts';
import type { RoleSwitchLimits } from '../../../src/core/router/roles/role-switch.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { type Answer, answerOf, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';
import { busMembers, serving, until } from './bus-members.ts';

const members = busMembers();
const long = { prompts: [1, 2, 3].map((kind) => livePrompt(kind, 460)), tokens: 1 };
const jobs = { prompts: [7, 8].map((kind) => livePrompt(kind, 40)), tokens: 20 };
const short = { prompts: [4, 5, 6].map((kind) => livePrompt(kind, 20)), tokens: 200 };
type Load = typeof long;
const expected = new Map<Load, readonly unknown[]>();
const bits = ({ tokens, logprobs, end }: Answer) => ({ tokens, logprobs, end });

let names = 0;
async function answersOf(cluster: Pick<ClusterGateway, 'submit'>, { prompts, tokens }: Load, batch = false) {
  // No instance has the prefixes of an earlier round.
  const salt = String(++names);
  const requests = prompts.map((prompt, i) => ({
    ...liveRequest(`${salt}.${i}`, prompt, tokens),
    ...{ salt, batch },
  }));
  return (await Promise.all(requests.map((request) => answerOf(cluster, request)))).map(bits);
}

beforeAll(async () => {
  const alone = liveCluster([{}]);
  await alone.ready();
  for (const load of [long, short, jobs]) expected.set(load, await answersOf(alone, load));
  await alone.close();
});

async function started(admission: Partial<AdmissionSettings>, tbtUs: number, joining: readonly InstanceRole[]) {
  const hub = new MemoryHub();
  const slo = { ttft: { us: 1e6 }, tbt: { us: tbtUs } };
  const gateway = await members.gateway(hub.connect(), {
    admission: { kind: 'none', slo, decodeUs: 1e7, ...admission },
  });
  for (const [i, role] of joining.entries()) {
    await members.instance(hub.connect(), `i${i}`, { role, roleSwitch: true });
    await until(() => serving(gateway) === i + 1);
  }
  return gateway;
}

/** Little more than a step takes: a few requests that decode fill a decode instance. */
const tightUs = 1_500;
const quick: RoleSwitchLimits = {
  ...{ sustainUs: 1_000, dwellUs: 100_000, gain: 1.05, loadMin: 1e-4 },
  ...{ intervalUs: 1_000, windowUs: 20_000 },
};

it.skipIf(loadNative() === undefined)('instances change their roles with the load, and no answer changes', async () => {
  const gateway = await started({ roleSwitch: quick }, tightUs, ['prefill', 'prefill', 'decode']);
  const count = (role: InstanceRole) => gateway.roles().filter((each) => each === role).length;
  const sendUntil = async (load: Load, holds: () => boolean): Promise<void> => {
    do expect(await answersOf(gateway, load)).toEqual(expected.get(load));
    while (!holds());
  };
  let decoders = 0;
  const watched = setInterval(() => {
    decoders = Math.max(decoders, count('decode'));
  }, 1);
  await sendUntil(short, () => decoders === 2);
  clearInterval(watched);
  await sendUntil(long, () => count('prefill') === 2);
  await until(() => gateway.snapshot().pages.used === 0);
});

it.skipIf(loadNative() === undefined)(
  'short prompts are computed where they decode, and batch jobs run beside them with the same answers',
  async () => {
    const gateway = await started({ inlineTokens: 64 }, 1e7, ['prefill', 'decode']);
    const computed = () => gateway.instances().map(({ computedPromptTokens }) => computedPromptTokens);
    expect(await answersOf(gateway, short)).toEqual(expected.get(short));
    // A prompt goes to the prefill instance if its step is predicted to be too long for the others.
    expect(computed()[1]).toBeGreaterThan(0);
    const [batch, answers] = await Promise.all([answersOf(gateway, jobs, true), answersOf(gateway, short)]);
    expect([batch, answers]).toEqual([expected.get(jobs), expected.get(short)]);
    await until(() => gateway.snapshot().pages.used === 0);
  },
);
