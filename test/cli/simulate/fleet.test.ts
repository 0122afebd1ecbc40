// `kvasir simulate --fleet`: the engines of a fleet file on measured step times.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { readOptions } from '../../../src/cli/options/options.ts';
import { runSimulation, simulationSchema } from '../../../src/cli/simulate/simulated-run.ts';

const tables = fileURLToPath(new URL('../../data/kernel-latencies', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'kvasir-fleet-'));
const fleet = join(folder, 'fleet.yaml');
afterAll(() => rmSync(folder, { recursive: true }));

const engines = (...each: readonly string[]) =>
  `engines:\n${each.map((own, i) => `  - { url: 'http://engine-${i}:8000', simulated: { hardware: h100 }${own} }\n`).join('')}`;

async function run(file: string, own: Readonly<Record<string, unknown>> = {}) {
  writeFileSync(fleet, file);
  const flags = {
    workload: 'sessions',
    requests: 60,
    rate: 8,
    seed: 3,
    model: 'llama3-8b',
    blockTokens: 16,
    fleet,
    tables,
  };
  return runSimulation(readOptions(simulationSchema, { ...flags, ...own }), false);
}

describe('a simulated fleet', () => {
  it('hits more of the prefix caches of its engines than round-robin, and fetches no prefix', async () => {
    const file = engines('', '');
    const [aware, again, turns] = [await run(file), await run(file), await run(file, { placement: 'round-robin' })].map(
      ({ outcome }) => outcome,
    );
    expect(aware.completedRequests).toBe(60);
    expect(again.stateHash).toBe(aware.stateHash);
    expect(aware.cachedTokens).toBeGreaterThan(1.2 * turns.cachedTokens);
    expect(aware.bytesMoved.prefix).toBe(0);
  });

  it('hands prompts from prefill to decode engines', async () => {
    const { outcome } = await run(engines(', role: prefill', ', role: decode'));
    expect([outcome.completedRequests, outcome.bytesMoved.handoff > 0]).toEqual([60, true]);
  });

  it.each([
    [{ tables: undefined }, 'Cannot use --fleet without --tables'],
    [{ mixed: 2 }, 'Cannot use --mixed with --fleet: external engines have none'],
    [{ borrow: true }, 'Cannot use --borrow with --fleet'],
    [{ gateways: 2 }, 'Cannot use --gateways 2 with --fleet'],
    [{ fleet: join(folder, 'none.yaml') }, 'Cannot read fleet'],
  ])('refuses %j', async (own, reason) => {
    await expect(run(engines(''), own)).rejects.toThrow(reason);
  });

  it('refuses a file without single engines', async () => {
    await expect(run('kubernetes: { selector: app=vllm }')).rejects.toThrow('write its engines one by one');
    await expect(run(engines(', simulated: {}'))).rejects.toThrow('Cannot read fleet');
  });
});
