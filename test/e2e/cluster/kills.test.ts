// Instances killed under overload: every answer is correct or a failure, and nothing is left behind.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { benchKills } from '../../../src/bench/kills/kills.ts';
import { ProcessCluster } from '../../../src/cli/bench/cluster/process-cluster.ts';
import { natsInstalled } from '../../runtime/bus/nats-server.ts';

describe.skipIf(!natsInstalled && process.env.CI === undefined)(
  'instances killed under overload (needs nats-server)',
  () => {
    let cluster: ProcessCluster | undefined;

    beforeAll(async () => {
      cluster = await ProcessCluster.start({ instances: 2, threads: 1, queue: 32, faults: ['instance'] });
    });
    afterAll(() => cluster?.close());

    it('gives only correct answers, refusals and clear failures', async () => {
      if (cluster === undefined) throw new Error('there is no cluster');
      const windows = { seconds: 3, windowSeconds: 3, everySeconds: 3, overload: 2 };
      const faults = { faults: ['instance'], seed: 1, settleSeconds: 600 } as const;
      const report = await benchKills({ cluster, ...windows, ...faults, onProgress: () => {} });
      expect(report.kills).toBeGreaterThan(0);
      expect(report.failures).toEqual([]);
      for (const { right, wrong, failed } of [report.calm, report.killed]) {
        expect(right).toBeGreaterThan(0);
        expect([wrong, failed]).toEqual([0, 0]);
      }
      expect(report.pagesUsedEnd).toBe(0);
    });
  },
);
