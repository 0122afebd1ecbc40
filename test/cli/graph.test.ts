// `kvasir graph`: the slices of the embedded model as text, JSON and SVG.
import { afterEach, expect, test, vi } from 'vitest';
import { graphCommand } from '../../src/cli/commands/graph.ts';

afterEach(() => vi.restoreAllMocks());

/** What the command prints. */
async function graph(...args: string[]): Promise<string> {
  const log = vi.spyOn(console, 'log').mockImplementation(() => {});
  await graphCommand().exitOverride().parseAsync(args, { from: 'user' });
  return log.mock.calls.flat().join('\n');
}

test('prints one JSON object with the operations and carried bytes of each slice', async () => {
  const { layers, slices } = JSON.parse(await graph('--json')) as {
    layers: number;
    slices: { operations: string[]; carriedBytesPerToken: number }[];
  };
  expect(layers).toBe(6);
  expect(slices).toHaveLength(layers + 1);
  expect(slices.map(({ carriedBytesPerToken }) => carriedBytesPerToken)).toEqual([...Array(6).fill(1024), 0]);
  for (const [layer, { operations }] of slices.slice(0, -1).entries()) {
    const at = `linear model.layers.${layer}.self_attn`;
    expect(operations.slice(-5)).toEqual([`${at}.q_proj`, 'sendQ', `${at}.k_proj`, `${at}.v_proj`, 'sendKV']);
  }
  expect(slices.slice(1).map(({ operations }) => operations[0])).toEqual(Array(6).fill('waitPartial'));
  expect(slices.at(-1)?.operations).not.toContain('sendQ');
});

test('prints slices that differ in their layer once, as text', async () => {
  const text = await graph();
  expect(text).toContain('llama, 6 layers, 7 slices');
  expect(text).toContain('Slices 1 to 5 (N)');
  expect(text).toContain('  linear model.layers.N.self_attn.q_proj\n  sendQ\n');
  expect(text).toContain('  carries 1024 bytes per token: add model.layers.N-1.mlp.down_proj');
});

test('draws a picture with every slice, its sends and its carried bytes', async () => {
  const svg = await graph('--svg');
  expect(svg).toMatch(/^<svg .*<\/svg>$/s);
  expect(svg.match(/>sendQ</g)).toHaveLength(2);
  expect(svg.match(/>carried 1024</g)).toHaveLength(2);
  expect(svg.match(/NaN|undefined/)).toBeNull();
});

test('shows how batches rotate over model replicas, with the bytes that move and no idle time', async () => {
  const reports = JSON.parse(await graph('--rotation', '2,4', '--json')) as {
    batches: number;
    replicas: number;
    movedBytesPerToken: number;
    rows: { name: string; idle: number }[];
  }[];
  // Six of the seven slices carry 1,024 bytes.
  expect(reports.map(({ movedBytesPerToken }) => movedBytesPerToken)).toEqual([0, 6 * 1024]);
  expect(reports.map(({ rows }) => rows.map(({ idle }) => idle))).toEqual([
    [0, 0],
    [0, 0, 0, 0],
  ]);
  expect(await graph('--rotation', '4')).toMatch(/Model replica 2 +2\.0 1\.1 4\.1 3\.2/);
});

test('draws the rotation as the picture of the documentation', async () => {
  const svg = await graph('--rotation', '2,4', '--svg');
  await expect(`${svg}\n`).toMatchFileSnapshot('../../docs/internals/rotation.svg');
  expect(svg.match(/NaN|undefined/)).toBeNull();
});

test.each(['1', '2,9', 'x', '2.5'])('refuses --rotation %s', async (batches) => {
  await expect(graph('--rotation', batches)).rejects.toThrow('write numbers of batches from 2 to 8');
});

test('refuses --svg together with --json', async () => {
  const silent = graphCommand()
    .exitOverride()
    .configureOutput({ writeErr: () => {} });
  await expect(silent.parseAsync(['--svg', '--json'], { from: 'user' })).rejects.toThrow('cannot be used with');
});
