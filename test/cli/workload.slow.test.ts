// Workloads from the command line: generated, written, simulated, sliced and repeated.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { kvasir } from './command.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-workload-'));
afterAll(() => rmSync(folder, { recursive: true }));

describe('workloads', () => {
  it('are the same from a file and generated', async () => {
    const flags = ['--requests', '1500', '--seed', '5', '--rate', '2'];
    const path = join(folder, 'real.jsonl');
    writeFileSync(path, (await kvasir('trace', 'generate', 'real', ...flags)).stdout);
    const from = async (...source: string[]) =>
      JSON.parse((await kvasir('simulate', ...source, '--mixed', '4', '--json')).stdout);
    const statistics = async (...more: string[]) =>
      JSON.parse((await kvasir('trace', 'stats', path, '--json', ...more)).stdout);
    const { requests, durationSeconds, blocks } = await statistics();
    expect(requests).toBe(1500);
    const part = await statistics('--slice', '0..500', '--tile', '3', '--speed', '10');
    expect(part.requests).toBe(1500);
    expect(part.durationSeconds).toBeLessThan(durationSeconds / 8);
    expect(part.blocks.unique % 3).toBe(0);
    expect(part.blocks.unique).not.toBe(blocks.unique);
    const read = await from('--trace', path);
    expect(read).toMatchObject({ requests: 1500, completed: 1500 });
    expect((await from('--workload', 'real', ...flags)).stateHash).toBe(read.stateHash);
    expect((await from('--workload', 'real', ...flags, '--seed', '6')).stateHash).not.toBe(read.stateHash);
  });

  it('are sliced, then repeated, then sped up', async () => {
    const lines = async (...flags: string[]) => {
      const shape = ['--arrivals', 'constant', '--shared', '0.5', '--families', '1'];
      const { stdout } = await kvasir('trace', 'generate', ...shape, ...flags);
      return stdout
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as { timestamp: number; hash_ids: number[] });
    };
    const whole = ['--requests', '100', '--slice', '10..14', '--tile', '3', '--speed', '4'];
    const requests = await lines(...whole);
    expect(requests.map(({ timestamp }) => timestamp)).toEqual(requests.map((_, i) => i * 250));
    expect(new Set(requests.map(({ hash_ids: [first] }) => first)).size).toBe(3);
    expect(new Set((await lines(...whole, '--tile-blocks', 'same')).map(({ hash_ids: [first] }) => first)).size).toBe(
      1,
    );
  });

  it.each([
    ['no source', ['simulate'], /Cannot choose a workload: use --trace FILE or --workload NAME/],
    ['two sources', ['simulate', '--trace', 'x', '--workload', 'real'], /Cannot use --workload with --trace/],
    [
      'a trace with generator options',
      ['simulate', '--trace', 'x', '--new-tokens', '5'],
      /Cannot use --new-tokens with --trace/,
    ],
    ['an unknown workload', ['trace', 'generate', 'surreal'], /Cannot find workload surreal: known are plain, arxiv/],
    ['no lengths', ['trace', 'generate', '--input', '5..1'], /Cannot use --input 5..1: write 512, 100..900 or/],
    ['no span', ['trace', 'generate', '--slice', '5s..7'], /Cannot use --slice 5s..7: write 100..500/],
    ['lengths twice', ['trace', 'generate', '--lengths', 'x', '--input', '5'], /Cannot use --lengths with --input/],
  ])('are refused in one line: %s', async (_, args, message) => {
    const { status, stdout, stderr } = await kvasir(...args);
    expect([status, stdout]).toEqual([2, '']);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toMatch(message);
  });
});
