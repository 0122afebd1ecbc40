// The conductor's prefix index when KV events are lost.
import { expect, it } from 'vitest';
import { sloRule } from '../../../src/core/router/admission/length-admission.ts';
import { Float64Pool } from '../../../src/core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { createConductor } from '../../../src/sim/engine/conductor-driver.ts';
import { defaultFaultTimes } from '../../../src/sim/faults/fault-plan.ts';
import { digestWords } from '../../../src/util/blake2s.ts';
import { blockTokens, config, requestOf } from '../small-cluster.ts';

const { silentUs } = defaultFaultTimes;

it('drops the blocks of an instance with events missing for too long', () => {
  const faults = { seed: 1, faults: [], times: defaultFaultTimes };
  const memory = { capacityTokens: [100, 100], longestTokens: [100, 100] };
  const conductor = createConductor({ ...config, faults }, sloRule(config.admission, config.instances), memory, {
    restarted: false,
    messageCounts: undefined,
  });
  const { chain } = new LengthRequest(requestOf(0, 0, 100, 1), blockTokens, new Float64Pool());
  const report = (nowUs: number, instance: number, number: number, kvEventNumber: number) =>
    conductor.step(nowUs, {
      kind: 'report',
      instance,
      report: { incarnation: 0, number, kvEventNumber, requests: [] },
    });
  for (const instance of [0, 1]) {
    conductor.step(0, { kind: 'instanceJoined', instance, incarnation: 0 });
    const snapshot = { incarnation: 0, number: 1, blocks: chain.blocks, words: chain.words };
    conductor.step(0, { kind: 'snapshot', instance, snapshot });
  }
  const isNamed = (instance: number, block: number) => conductor.indexHas(instance, chain.words, block * digestWords);
  const blocks = Array.from({ length: chain.blocks }, (_, block) => block);
  const named = () => [0, 1].map((instance) => blocks.filter((block) => isNamed(instance, block)).length);
  const snapshotRequest = { kind: 'requestSnapshot', instance: 1 };
  expect(named()).toEqual([6, 6]);
  let number = 0;
  // Both continue to report; some events of the second never arrived.
  for (let nowUs = 0; nowUs <= silentUs; nowUs += silentUs / 4) {
    report(nowUs, 0, ++number, 1);
    expect(report(nowUs, 1, number, 2)).toContainEqual(snapshotRequest);
    conductor.step(nowUs, { kind: 'wake' });
    expect(named()).toEqual([6, 6]);
  }
  conductor.step(1.25 * silentUs, { kind: 'wake' });
  expect(named()).toEqual([6, 0]);
  expect(report(1.25 * silentUs, 1, ++number, 2)).toContainEqual(snapshotRequest);
  conductor.step(1.25 * silentUs, {
    kind: 'snapshot',
    instance: 1,
    snapshot: { incarnation: 0, number: 2, blocks: 3, words: chain.words },
  });
  expect(named()).toEqual([6, 3]);
  expect(report(1.5 * silentUs, 1, ++number, 2)).not.toContainEqual(snapshotRequest);
});
