// Which way the attention of a live step goes: the rule of the simulator, over measured links and predicted steps.
import { expect, it } from 'vitest';
import { AttentionWays } from '../../../src/runtime/lending/attention-ways.ts';
import type { Step } from '../../../src/util/step.ts';

const blocks = Int32Array.from({ length: 8 }, (_, i) => i);
const keysAt = (server: number) => ({ sequence: 0, group: 0, firstBlock: 0, server, loan: 0, blocks });

/** A step whose rows attend to 256 keys at each of these servers; instance 1 has server 71, instance 2 server 72. */
function stepWith(rows: number, servers: readonly number[]) {
  const own = { rows, keyRows: 512 * rows, decodeRows: rows === 1 ? 1 : 0, decodeKeys: rows === 1 ? 512 : 0 };
  const work = { ...own, keyRows: 256 * rows, decodeKeys: rows === 1 ? 256 : 0, hostTokens: 0 };
  const remote = servers.map((server) => ({ creditor: server - 70, ...work, remoteAttentionPermille: 100 }));
  const plan = { remote: servers.map(keysAt) } as unknown as Step;
  const effect = { kind: 'runStep', step: 1, plan, predictedUs: 1, stepsMax: 1, background: false } as const;
  const traffic = { loadTokens: 0, storeTokens: 0, range: undefined, activationsOut: undefined };
  return { ...effect, ...traffic, shape: { ...own, logitRows: 1 }, remote };
}

function waysOf(kind: 'auto' | 'dist' | 'ring') {
  const freed: number[] = [];
  const heads = { layers: 2, heads: 8, headDim: 64 };
  const readers = { openReader: (server: number) => server + 100, freeReader: (reader: number) => freed.push(reader) };
  const link = { roundTripUs: 20, bytesPerSecond: 1e9 };
  const ways = new AttentionWays({ kind, heads, kvBytesPerToken: 1024, ...readers }, 0, () => link);
  ways.connected(1, 71);
  const serversOf = (rows: number, servers: readonly number[]) =>
    ways.placed(stepWith(rows, servers), ({ keyRows }) => 100 + keyRows / 100).remote.map(({ server }) => server);
  return { ways, freed, serversOf };
}

it('sends the keys to the rows of a long chunk, and a decode row to its keys', () => {
  const { ways, serversOf } = waysOf('auto');
  expect(serversOf(256, [71])).toEqual([171]);
  expect(ways.keyBytes).toBe(256 * 1024);
  expect(serversOf(1, [71])).toEqual([71]);
  expect(ways.keyBytes).toBe(256 * 1024);
});

it('sends rows to all creditors if one of them has no known server, or always', () => {
  expect(waysOf('ring').serversOf(256, [71, 72])).toEqual([71, 72]);
  expect(waysOf('ring').serversOf(1, [71])).toEqual([171]);
  expect(waysOf('dist').serversOf(256, [71])).toEqual([71]);
});

it('reads the pages of the server that a creditor announced last', () => {
  const { ways, freed, serversOf } = waysOf('ring');
  ways.connected(1, 71);
  expect(freed).toEqual([]);
  ways.connected(1, 75);
  expect(freed).toEqual([171]);
  expect(serversOf(256, [71])).toEqual([71]);
});
