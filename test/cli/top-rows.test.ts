// The rows of `kvasir top`: gauges, rates between two views, and debts.
import { expect, it } from 'vitest';
import { clusterViewSchema, topRows } from '../../src/cli/serve/host/instance-rows.ts';
import type { InstanceSnapshot, LendingSnapshot } from '../../src/core/protocol/ports.ts';
import { describeCluster } from '../../src/gateway/http/cluster-view.ts';
import { emptySnapshot } from '../../src/runtime/snapshots/metric-snapshots.ts';
import { ScriptedPort } from '../gateway/scripted-port.ts';
import { figuresOf, noCluster } from '../gateway/world.ts';

/** Two lending instances: lender 4 owes three blocks to lender 9. */
function lending(lenderNumber: number, links: LendingSnapshot['links']): LendingSnapshot {
  const nothing = {
    movedBlocks: 0,
    hostBlocks: 0,
    ownHostBlocks: 0,
    vacatedBlocks: 0,
    settledBlocks: 0,
    lostBlocks: 0,
  };
  const counts = { ...nothing, copiedBytes: 0, overlappedBytes: 0, stalls: 1, stallUs: 20 };
  const noQueries = { queries: 0, bytesIn: 0, bytesOut: 0 };
  return {
    ...{
      ...counts,
      lenderNumber,
      links,
      lentBlocks: lenderNumber === 9 ? 3 : 0,
      borrowedBlocks: lenderNumber === 4 ? 3 : 0,
      remoteBlocks: 2,
      remoteCachedBlocks: 0,
    },
    ...{
      servedAttention: { ...noQueries, rows: 0, refused: 0, seconds: 0, restSeconds: 0 },
      remoteAttention: { ...noQueries, waitSeconds: 0 },
    },
  };
}

const link = {
  borrowedBlocks: 0,
  movedBytes: 0,
  refusals: 0,
  queries: 0,
  refusedQueries: 0,
  queryBytes: 0,
  partialBytes: 0,
};

function viewAfter(seconds: number): ReturnType<typeof clusterViewSchema.parse> {
  const instances: readonly InstanceSnapshot[] = [
    {
      ...{ ...emptySnapshot, name: 'p', ready: true, waiting: 2, running: 1 },
      ...{ pages: { total: 100, used: 60, cached: 30, free: 10 }, promptTokens: 200, cachedTokens: 50 },
      ...{ computedPromptTokens: 300 * seconds, stepMsTotal: 250 * seconds },
      links: [{ to: 1, transport: 'shared', bytes: 4e6 * seconds, backlogBytes: 1e6 }],
      lending: lending(4, [{ ...link, peer: 9, borrowedBlocks: 3, refusals: 1 }]),
    },
    {
      ...{ ...emptySnapshot, name: 'd', ready: true, generatedTokens: 40 * seconds },
      lending: lending(9, [
        { ...link, peer: 4, queries: 70 * seconds, queryBytes: 1e6 * seconds, partialBytes: 1e6 * seconds },
      ]),
    },
  ];
  class Port extends ScriptedPort {
    override instances() {
      return instances;
    }
  }
  const port = new Port(() => []);
  const view = describeCluster(figuresOf(port, 'm'), port, { ...noCluster, roles: () => ['prefill', 'decode'] });
  return clusterViewSchema.parse({ ...JSON.parse(JSON.stringify(view)), at_ms: 1000 * seconds });
}

it('shows instances, pages, debts and load', () => {
  expect(topRows(viewAfter(3), viewAfter(1))).toMatchObject([
    {
      ...{ instance: 0, name: 'p', role: 'prefill', up: 'yes', waiting: 2, running: 1, pages: '60/100', cached: 30 },
      ...{ 'load%': 25, 'prompt/s': 300, 'output/s': 0, 'hit%': 25, 'sent over': 'shared', 'backlog MB': 1 },
      ...{ lent: 0, borrowed: 3, owes: '1:3', refused: 1, 'remote q/s': 0 },
    },
    {
      ...{ instance: 1, name: 'd', role: 'decode', 'output/s': 40, lent: 3, borrowed: 0, owes: '' },
      ...{ 'remote q/s': 70, 'remote MB/s': 2 },
    },
  ]);
  // A single view has no rates.
  expect(topRows(viewAfter(1), undefined)).toMatchObject([
    { 'load%': undefined, owes: '1:3' },
    { 'output/s': undefined },
  ]);
});
