// `kvasir simulate --cost table`: tables from a directory, and one clear line for unusable ones.
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { type CommandResult, kvasir } from './command.ts';

const tables = fileURLToPath(new URL('../data/kernel-latencies', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'kvasir-cost-'));
afterAll(() => rmSync(folder, { recursive: true }));

function simulate(...args: string[]): Promise<CommandResult> {
  const flags = [
    'simulate',
    '--workload',
    'real',
    '--requests',
    '50',
    '--model',
    'llama3-8b',
    '--mixed',
    '1',
    '--json',
    ...args,
  ];
  return kvasir(...flags);
}

describe('steps by measured tables', () => {
  it('differ from roofline times, and are deterministic', async () => {
    const run = async (...args: string[]) => JSON.parse((await simulate('--hardware', 'h100', ...args)).stdout);
    const byTable = await run('--cost', 'table', '--tables', tables);
    expect(byTable).toMatchObject({ requests: 50, completed: 50 });
    expect((await run('--cost', 'table', '--tables', tables)).stateHash).toBe(byTable.stateHash);
    expect((await run()).stateHash).not.toBe(byTable.stateHash);
  });

  it.each([
    ['no directory', ['--hardware', 'h100'], 'Cannot use --cost table: name a directory with --tables'],
    ['no such device', ['--hardware', 'h20', '--tables', tables], 'there are none for h20: known are a100, h100, h200'],
    [
      'no such arithmetic',
      ['--hardware', 'a100-80', '--precision', 'fp8', '--tables', tables],
      'has no such arithmetic',
    ],
    ['a missing file', ['--hardware', 'h200', '--tables', tables], 'has no h200_sxm_vllm*_gemm_perf.csv'],
    ['no such number of devices', ['--hardware', 'h100x8', '--tp', '8', '--tables', tables], 'Cannot time'],
  ])('report missing input: %s', async (_, args, message) => {
    const { status, stderr } = await simulate('--cost', 'table', ...args);
    expect(status).toBe(2);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toContain(message);
  });

  it('name file, line and column of a broken table', async () => {
    const broken = join(folder, 'tables');
    cpSync(tables, broken, { recursive: true });
    const gemm = join(broken, 'h100_sxm_vllm0.14.0_gemm_perf.csv');
    const run = async () => (await simulate('--cost', 'table', '--hardware', 'h100', '--tables', broken)).stderr;
    writeFileSync(gemm, 'gemm_dtype,m,n,latency\nbfloat16,1,1,1\n');
    expect(await run()).toContain('gemm_perf.csv: line 1: no column k');
    writeFileSync(gemm, 'gemm_dtype,m,n,k,latency\nbfloat16,1,1,1\n');
    expect(await run()).toContain('gemm_perf.csv: line 2: 4 columns: 5 expected');
    writeFileSync(gemm, 'gemm_dtype,m,n,k,latency\nbfloat16,1,1,1,fast\n');
    expect(await run()).toContain("gemm_perf.csv: line 2: latency is 'fast'");
  });
});
