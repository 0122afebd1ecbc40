// What commands print for people: units, tables within 100 columns, bars, log lines, and help in groups.
import { afterEach, describe, expect, it, vi } from 'vitest';
import { bar, sparkline } from '../../src/cli/terminal/bars.ts';
import { counted, fieldText, percent, readable, readableBytes } from '../../src/cli/terminal/fields.ts';
import { humanLine } from '../../src/cli/terminal/log-lines.ts';
import { listLines, printList, tableLines } from '../../src/cli/terminal/table.ts';
import { kvasir } from './command.ts';

describe('field names in words', () => {
  it.each([
    ['ttftMsP99', 'TTFT p99', 'ms'],
    ['tokensPerSecond', 'tokens/s', ''],
    ['msPerStep', 'time', 'ms/step'],
    ['roofGbPerSecondOneThread', 'roof one thread', 'GB/s'],
    ['decisionUsP50', 'decision p50', 'µs'],
    ['simulatedSeconds', 'simulated', 's'],
    ['ms', 'time', 'ms'],
    ['requests', 'requests', ''],
    ['pageKiB', 'page', 'KiB'],
    ['sharedGBs', 'shared', 'GB/s'],
  ])('%s reads "%s" in "%s"', (name, label, unit) => {
    expect(fieldText(name)).toMatchObject({ label, unit });
  });

  it('numbers have thousands separators, and four digits when they are not whole', () => {
    expect([2000, 0.123456, 12_345.678, 1_234_567].map(readable)).toEqual(['2,000', '0.1235', '12,346', '1,234,567']);
    expect([999, 12_300_000, 4.2e12].map(readableBytes)).toEqual(['999 bytes', '12.3 MB', '4.2 TB']);
    expect([counted(1, 'request'), counted(2000, 'request')]).toEqual(['1 request', '2,000 requests']);
    expect(percent(0.98996)).toBe('98.99 %');
  });
});

describe('tables', () => {
  it('align numbers at the right and texts at the left', () => {
    const rows = [
      { cost: 'table', points: 1219, ttftMs: 3.5 },
      { cost: 'roofline', points: 7, ttftMs: undefined },
    ];
    expect(tableLines(rows)).toEqual([
      'cost      points  TTFT (ms)',
      'table      1,219        3.5',
      'roofline       7          -',
    ]);
  });

  it('continue below in 100 columns, with the first column repeated', () => {
    const wide = Object.fromEntries(Array.from({ length: 12 }, (_, i) => [`aRatherLongName${i}`, 10 ** i]));
    const lines = tableLines([
      { name: 'a', ...wide },
      { name: 'b', ...wide },
    ]);
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(100);
    expect(lines.filter((line) => line.startsWith('name'))).toHaveLength(3);
    expect(lines.join(' ').match(/a rather long name/g)).toHaveLength(12);
  });

  it('list a single object with units, and its inner objects by both names', () => {
    expect(listLines({ requests: 2000, sentBytes: 5e9, latency: { p50Ms: 1.5 } })).toEqual([
      'requests     2,000',
      'sent bytes   5.0 GB',
      'latency p50  1.5 ms',
    ]);
  });
});

it('bars and sparklines show shares and distributions', () => {
  expect([bar(0, 4), bar(0.5, 4), bar(1, 4), bar(2, 4)]).toEqual(['░░░░', '██░░', '████', '████']);
  expect(sparkline([0, 1, 4, 8])).toBe(' ▁▄█');
});

describe('printed lists', () => {
  afterEach(() => vi.restoreAllMocks());

  it('wrap long texts at 100 columns', () => {
    const lines: string[] = [];
    vi.spyOn(console, 'log').mockImplementation((line = '') => void lines.push(String(line)));
    printList('Title', [['label', 'word '.repeat(40).trim()]]);
    expect(lines[0]).toBe('Title');
    expect(lines.length).toBeGreaterThan(3);
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(100);
  });
});

describe('log lines for people', () => {
  const time = new Date(2026, 0, 2, 3, 4, 5, 6).getTime();

  it('have time, level, message and key figures', () => {
    const line = { level: 30, time, pid: 1, hostname: 'h', requestId: 'r-1', status: 200, ms: 1234, msg: 'request' };
    expect(humanLine(JSON.stringify(line), false)).toBe(
      '03:04:05.006 INFO  request  requestId=r-1 status=200 time=1,234ms\n',
    );
  });

  it('name the instance, colour the level, and indent the stack of an error', () => {
    const line = {
      level: 50,
      time,
      instance: 'a',
      err: { message: 'no', stack: 'Error: no\n  at x' },
      msg: 'stream failed',
    };
    const text = humanLine(JSON.stringify(line), true);
    expect(text).toBe('03:04:05.006 \x1b[31mERROR\x1b[0m [a] stream failed\n    Error: no\n      at x\n');
  });
});

describe('help', () => {
  it('serve shows common groups, and every group under --help-all, in 100 columns', async () => {
    const { stdout: short } = await kvasir('serve', '--help');
    const { stdout: all } = await kvasir('serve', '--help-all');
    const titles = (text: string) => text.split('\n').filter((line) => /^[A-Z].*:$/.test(line));
    const common = ['Model:', 'HTTP:', 'Memory:', 'Limits:'];
    const rare = ['Cluster:', 'Scheduling:', 'Lending:', 'Sparse KV:', 'Pipeline:', 'Tiers:', 'Observability:'];
    expect(titles(short)).toEqual([...common, 'Options:']);
    expect(titles(all)).toEqual([...common, ...rare, 'Options:']);
    for (const text of [short, all])
      expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThanOrEqual(100);
    expect(short).toContain('--help-all');
    expect(all).not.toContain('--guest-share');
  });

  it('older option names are still read', async () => {
    const plain = ['simulate', '--workload', 'plain', '--requests', '5', '--json', '--faults', 'loss:ratio=0.01'];
    const hash = async (...flags: string[]) => JSON.parse((await kvasir(...plain, ...flags)).stdout).stateHash;
    const older = await hash('--tries', '1', '--silent-ms', '900');
    expect(older).toBe(await hash('--attempts', '1', '--heartbeat-timeout-ms', '900'));
  });
});

it('simulate prints a summary in words within 100 columns', async () => {
  const { stdout: text } = await kvasir(
    'simulate',
    '--workload',
    'real',
    '--requests',
    '60',
    '--mixed',
    '2',
    '--borrow',
    '--ttft-slo',
    '60s',
    '--tbt-slo',
    '1s',
  );
  expect(text).toMatch(/^Requests: 60, all completed\n {2}within SLO +█{20} 100 %: 60 of 60\n/);
  expect(text).toMatch(/TTFT +[\d,.]+ +[\d,.]+ +[\d,.]+ +[\d,.]+ {2}[▁▂▃▄▅▆▇█ ]+\n/);
  expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThanOrEqual(100);
});
