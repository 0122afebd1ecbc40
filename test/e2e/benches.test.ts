// Benches that start processes: the processes end with the bench, however it ends.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../src/kernel/native/native.ts';
import { leftToUs } from '../children.ts';
import { natsInstalled } from '../runtime/bus/nats-server.ts';
import { until } from './server.ts';

const command = fileURLToPath(new URL('../../bundle/cli/main.js', import.meta.url));

/** Running processes by parent. */
function processes(): readonly (readonly [pid: number, parent: number])[] {
  const { stdout } = spawnSync('ps', ['-A', '-o', 'pid=,ppid=,stat='], { encoding: 'utf8' });
  const rows = stdout.trim().split('\n');
  return rows.flatMap((row) => {
    const [pid, parent, state = ''] = row.trim().split(/\s+/);
    return state.startsWith('Z') ? [] : [[Number(pid), Number(parent)] as const];
  });
}

const childrenOf = (pid: number) => processes().flatMap(([child, parent]) => (parent === pid ? [child] : []));

const runs = loadNative() !== undefined && (natsInstalled || process.env.CI !== undefined);

describe.skipIf(!runs)('processes that a bench starts (needs nats-server)', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-benches-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  it.each(['SIGTERM', 'SIGINT'] as const)('end with the bench on %s', async (signal) => {
    const flags = ['bench', 'pipeline', '--processes', '--prompts', '256', '--repeats', '100000'];
    const env = { ...process.env, TMPDIR: folder };
    const bench = leftToUs(spawn(process.execPath, [command, ...flags], { stdio: 'ignore', env }));
    const ended = new Promise<unknown>((resolve) => bench.once('exit', (_code, by) => resolve(by)));
    // The NATS server, and the starting instances: at least two.
    let started: readonly number[] = [];
    await until(async () => {
      started = childrenOf(bench.pid ?? 0);
      return started.length >= 3;
    });
    bench.kill(signal);
    expect(await ended).toBe(signal);
    await until(async () => !processes().some(([pid]) => started.includes(pid)));
    expect(readdirSync(folder)).toEqual([]);
  });
});
