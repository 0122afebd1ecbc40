// Blocks on SSD of joining instances: gateways place by them from the start.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { answerOf, livePrompt, liveRequest } from '../threads/instances.ts';
import { busMembers, serving, until } from './bus-members.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-tiers-bus-'));
afterAll(() => rmSync(folder, { recursive: true }));
const members = busMembers();

const prompts = Array.from({ length: 8 }, (_, kind) => livePrompt(kind, 100 + 17 * kind));
const fullBlocks = prompts.map(({ length }) => Math.floor((length - 1) / 32));

async function cluster(hub: MemoryHub) {
  const gateway = await members.gateway(hub.connect());
  const instances = await Promise.all(
    ['a', 'b'].map((name) => {
      const tiers = { hostBytes: undefined, ssd: { path: join(folder, name), bytes: 2 ** 24 } };
      return members.instance(hub.connect(), name, { roleSwitch: true, settings: { tiers } });
    }),
  );
  const close = async (): Promise<void> => {
    gateway.close();
    await Promise.all(instances.map((each) => each.close()));
  };
  await until(() => serving(gateway) === 2);
  return { gateway, close };
}

it.skipIf(loadNative() === undefined)(
  'blocks on SSD are known to a gateway from the start, and stay when roles change',
  async () => {
    const hub = new MemoryHub();
    const before = await cluster(hub);
    await Promise.all(prompts.map((prompt, i) => answerOf(before.gateway, liveRequest(`a${i}`, prompt, 1))));
    const blocks = fullBlocks.reduce((sum, count) => sum + count, 0);
    const onSsd = (of: ClusterGateway) => of.instances().map(({ tiers }) => tiers?.ssd.blocks ?? 0);
    await until(() => onSsd(before.gateway).reduce((sum, count) => sum + count, 0) >= blocks);
    expect(onSsd(before.gateway).every((count) => count > 0)).toBe(true);
    await before.close();
    const after = await cluster(hub);
    const answers = [];
    for (const [i, prompt] of prompts.entries())
      answers.push(await answerOf(after.gateway, liveRequest(`b${i}`, prompt, 3)));
    // If SSD was slow, recomputation may be predicted to be faster.
    const known = (id: string) =>
      after.gateway.requestTrace(id)?.placements[0]?.candidates.map((each) => each.matchedTokens);
    expect(prompts.map((_, i) => Math.max(...(known(`b${i}`) ?? [0])))).toEqual(fullBlocks.map((count) => 32 * count));
    for (const [i, { cachedTokens }] of answers.entries())
      expect([0, 32 * (fullBlocks[i] ?? 0)]).toContain(cachedTokens);
    expect(answers.some(({ cachedTokens = 0 }) => cachedTokens > 0)).toBe(true);
    // The blocks remain after a role switch, and are used in the new role.
    const held = onSsd(after.gateway);
    expect(after.gateway.switchRole(1, 'decode')).toBeUndefined();
    expect(after.gateway.switchRole(0, 'prefill')).toBeUndefined();
    const again = await Promise.all(
      prompts.map((prompt, i) => answerOf(after.gateway, liveRequest(`c${i}`, prompt, 3))),
    );
    expect(again.map(({ tokens }) => tokens)).toEqual(answers.map(({ tokens }) => tokens));
    expect(Math.max(...again.map(({ cachedTokens = 0 }) => cachedTokens))).toBeGreaterThan(0);
    expect(onSsd(after.gateway).every((count, i) => count >= (held[i] ?? 0))).toBe(true);
    expect(after.gateway.roles()).toEqual(['prefill', 'decode']);
  },
);
