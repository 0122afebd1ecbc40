// `simulate --policy`: a module that states a named policy in its own words gives the same run; wrong modules are refused.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { readOptions } from '../../../src/cli/options/options.ts';
import { readPolicies } from '../../../src/cli/simulate/policy-file.ts';
import { reportOfRun, simulationSchema } from '../../../src/cli/simulate/simulated-run.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-policies-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const workload = { workload: 'real', requests: '150', rate: '3', mixed: '3', cacheBlocks: '120' };

function example(name: string): string {
  return join(import.meta.dirname, '..', '..', '..', 'experiments', 'policies', `${name}.mjs`);
}

function run(flags: Readonly<Record<string, string | undefined>>) {
  return reportOfRun(readOptions(simulationSchema, { ...workload, ...flags }));
}

let files = 0;
function fileOf(source: string): string {
  const path = join(folder, `policy-${files++}.mjs`);
  writeFileSync(path, source);
  return path;
}

describe('a policy file', () => {
  const tier = { hostCacheBlocks: '60' };
  const slo = { ttftSlo: '8s', tbtSlo: '50ms' };

  it.each([
    ['eviction by last use', { eviction: 'lru' }, 'eviction = () => ({ rank: ({ usedUs }) => usedUs })'],
    ['eviction by uses', { eviction: 'lfu' }, 'eviction = () => ({ rank: ({ uses }) => uses })'],
    [
      'eviction by an order without ranks',
      { eviction: 'fifo' },
      `eviction = () => ({
        order: ({ storedAt, depth }, a, b) => storedAt[a] - storedAt[b] || depth[b] - depth[a] || a - b,
      })`,
    ],
    [
      'placement by load',
      { placement: 'least-loaded' },
      `placement = (_query, { up, requests }) => {
        const least = requests.reduce((best, count, i) => (up[i] && count < requests[best] ? i : best), 0);
        return { instance: least };
      }`,
    ],
    [
      'admission by the largest load over 1',
      { ...slo, admission: 'early' },
      `admission = (loads) => {
        const [name, load] = Object.entries(loads).sort(([, a], [, b]) => b - a)[0];
        return load > 1 ? name : undefined;
      }`,
    ],
  ])('that states %s gives the run of the named policy', async (_what, flags, source) => {
    const policy = fileOf(`export const ${source};`);
    const named = await run(flags);
    const { admission, ...others } = flags as Record<string, string>;
    const own = Object.fromEntries(
      Object.entries(others).filter(([name]) => !['eviction', 'placement'].includes(name)),
    );
    // Policies that check before prefill check once more before decode.
    const checked: Record<string, string> = admission === undefined ? {} : { admission: 'stage' };
    expect((await run({ ...own, ...checked, policy })).stateHash).toBe(named.stateHash);
    expect((await run({ ...own, ...checked, eviction: 'fifo', placement: 'random' })).stateHash).not.toBe(
      named.stateHash,
    );
  });

  it.each([
    ['by served tokens', 'tokens', '({ tenantTokens }) => tenantTokens'],
    ['by arrival', 'arrival', '({ arrival }) => arrival'],
  ])('that states the batching order %s gives the run of the named order', async (_what, sharing, source) => {
    const busy = { rate: '4', mixed: '1', tenants: 'a:0.7,b:0.3', requests: '60' };
    const policy = fileOf(`export const batching = ${source};`);
    const [named, own, other] = [
      await run({ ...busy, sharing }),
      await run({ ...busy, policy }),
      await run({ ...busy, sharing: sharing === 'tokens' ? 'arrival' : 'tokens' }),
    ];
    expect(own.stateHash).toBe(named.stateHash);
    expect(own.stateHash).not.toBe(other.stateHash);
  });

  it('receives cost, tenant, size and next use of each block', async () => {
    const seen: Record<string, number | string>[] = [];
    vi.stubGlobal('seenBlocks', seen);
    const policy = fileOf(`
      export const needsNextUses = true;
      export const eviction = () => ({
        rank: (block) => {
          const { depth, tokens, computeUs, tenant, nextUseUs, nowUs } = block;
          globalThis.seenBlocks.push({ depth, tokens, computeUs, tenant, nextUseUs, nowUs });
          return nowUs;
        },
      });`);
    await run({ policy, tenants: 'a:0.5,b:0.5', requests: '60' });
    expect(seen.map(({ tenant }) => tenant)).toEqual(expect.arrayContaining(['a', 'b']));
    expect(new Set(seen.map(({ tokens }) => tokens))).toEqual(new Set([512]));
    const costs = [...new Map(seen.map(({ depth, computeUs }) => [Number(depth), Number(computeUs)]))].sort(
      ([a], [b]) => a - b,
    );
    for (const [i, [, us]] of costs.entries()) if (i > 0) expect(us).toBeGreaterThan(costs[i - 1][1]);
    expect(seen.every(({ nextUseUs, nowUs }) => nextUseUs > nowUs)).toBe(true);
    expect(seen.some(({ nextUseUs }) => Number.isFinite(nextUseUs))).toBe(true);
  });

  it('that needs the future is refused in a closed loop', async () => {
    await expect(run({ policy: example('belady'), clients: '4', rate: undefined })).rejects.toThrow(
      'with --clients: its eviction needs the arrivals, which follow from the run',
    );
  });

  it.each(['lru-2', 'gdsf', 'belady', 'longest-match'])('of the examples, %s, serves every request', async (name) => {
    const policy = example(name);
    const { completed, hitRatioTokens, stateHash } = await run({ ...tier, policy });
    expect(completed).toBe(150);
    expect(hitRatioTokens).toBeGreaterThan(0);
    expect(stateHash).not.toBe((await run(tier)).stateHash);
  });

  it.each([
    ['export const eviction = 1;', "'eviction' is no function"],
    ['export {};', 'it exports none of eviction, placement, admission, batching'],
    ['export const needsNextUses = true;', 'it exports none of eviction, placement, admission, batching'],
    ['export const evict = () => 1;', "its export 'evict' is none of eviction, placement, admission, batching"],
    ['export const eviction = () => ({});', "'eviction' returns an object without a function 'rank'"],
    ["throw new Error('broken');", 'broken'],
  ])('is refused: %s', async (source, why) => {
    await expect(readPolicies(fileOf(source))).rejects.toThrow(why);
  });

  it('of the examples, longest-prefix-first, changes the order of waiting requests and serves all', async () => {
    const busy = { rate: '1', mixed: '1', requests: '60' };
    const { completed, stateHash } = await run({ ...busy, policy: example('longest-prefix-first') });
    expect(completed).toBe(60);
    expect(stateHash).not.toBe((await run(busy)).stateHash);
  });

  it('that chooses a missing instance ends the run with its number', async () => {
    const policy = fileOf('export const placement = () => ({ instance: 7 });');
    await expect(run({ policy })).rejects.toThrow('the policy chose instance 7, which is not up');
  });
});
