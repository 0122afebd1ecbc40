// Snapshots of restarted instances: counters go on from those of earlier starts, and gauges are those of now.
import { expect, test } from 'vitest';
import type { InstanceSnapshot } from '../../../src/core/protocol/ports.ts';
import { emptySnapshot, snapshotAfterLoss, withEarlier } from '../../../src/runtime/snapshots/metric-snapshots.ts';

const sent = { streams: 1, pages: 2, firstPages: 1, bytes: 300, earlyBytes: 100, copySeconds: 0.5, faults: 1 };
const snapshot = (tokens: number): InstanceSnapshot => ({
  ...emptySnapshot,
  ...{ ready: true, running: 3, pages: { total: 9, used: 4, cached: 1, free: 4 } },
  ...{ generatedTokens: tokens, promptTokens: 2 * tokens, stepMsTotal: 7, sent },
  tiers: {
    ...{ host: { blocks: 5, capacity: 8 }, ssd: { blocks: 0, capacity: 0 } },
    ...{ reads: { host: 3, ssd: 0, instance: 1 }, lostBlocks: 2 },
  },
  sparse: { sequences: 1, slotTokens: 2, slotPages: 3, selections: 4, promptTokens: 5, keptTokens: 6 },
  attentionWorkers: [{ ready: true, losses: 1, sequences: 4, heldTokens: 9, bytesOut: 20, waitSeconds: 0.5 }],
  links: [{ to: 1, bytes: 50, backlogBytes: 7, transport: 'tcp' }],
});

test('counters include those of earlier starts, gauges do not', () => {
  const lost = snapshotAfterLoss(snapshot(2_000));
  const once = withEarlier(lost, snapshot(900));
  expect(once).toMatchObject({
    ...{ ready: true, running: 3, generatedTokens: 2_900, promptTokens: 5_800, stepMsTotal: 14 },
    ...{ pages: { total: 9, used: 4, cached: 1, free: 4 }, sent: { bytes: 600, copySeconds: 1, faults: 2 } },
    tiers: { host: { blocks: 5, capacity: 8 }, reads: { host: 6, ssd: 0, instance: 2 }, lostBlocks: 4 },
    sparse: { sequences: 1, slotTokens: 2, slotPages: 3, selections: 8, promptTokens: 10, keptTokens: 12 },
    attentionWorkers: [{ ready: true, losses: 2, sequences: 4, heldTokens: 9, bytesOut: 40, waitSeconds: 1 }],
    links: [{ to: 1, bytes: 100, backlogBytes: 7, transport: 'tcp' }],
  });
  expect(withEarlier(snapshotAfterLoss(once), snapshot(1)).generatedTokens).toBe(2_901);
  expect(withEarlier(undefined, snapshot(5))).toEqual(snapshot(5));
});
