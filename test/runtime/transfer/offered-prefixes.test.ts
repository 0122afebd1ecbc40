// An instance of a process copies a prefix that another one offers, and answers with the same bits from the copy.

import { expect, it } from 'vitest';
import type { InstanceIndex } from '../../../src/core/protocol/ids.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { ForwardTargets } from '../../../src/runtime/threads/conductor-driver.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { dyingWorker } from '../../bundled-worker.ts';
import { admitAll, answerOf, livePrompt, liveRequest, liveSettings } from '../threads/instances.ts';

/** Which prompts wait depends on the speed of the machine: here the request `hot` has the copy that the conductor would name. */
class OfferingCluster extends LiveCluster {
  protected override forwardTo(instance: InstanceIndex, request: GenerationRequest, targets: ForwardTargets): void {
    const offer = request.id === 'hot' ? { to: 1 - instance, blocks: 2 } : undefined;
    super.forwardTo(instance, request, { ...targets, offer });
  }
}

it.skipIf(loadNative() === undefined)(
  'a prefix is copied for an offer, and both instances answer the same from it',
  async () => {
    const cluster = new OfferingCluster({
      entry: dyingWorker,
      instances: [1, 2].map(() => ({ role: 'mixed', settings: { ...liveSettings, instances: 2 } })),
      ...{ admission: admitAll, queueMax: 64, log: () => {} },
    });
    await cluster.ready();
    const request = (id: string) => liveRequest(id, livePrompt(1, 70), 8);
    const bits = async (id: string) => {
      const { tokens, logprobs, end, cachedTokens } = await answerOf(cluster, request(id));
      return { cachedTokens, answer: [tokens, logprobs, end] };
    };
    const { answer } = await bits('first');
    expect(await bits('hot')).toEqual({ cachedTokens: 64, answer });
    const copies = () => cluster.instances().map(({ prefixCopies }) => prefixCopies?.proactiveBlocks ?? 0);
    while (!copies().includes(2)) await new Promise((resolve) => setTimeout(resolve, 2));
    // Of two requests at once, the conductor sends one to each instance.
    const both = await Promise.all([bits('one'), bits('other')]);
    expect(both).toEqual([1, 2].map(() => ({ cachedTokens: 64, answer })));
    const placed = ['one', 'other'].map((id) => cluster.requestTrace(id)?.placements[0]?.instance);
    expect(placed.toSorted()).toEqual([0, 1]);
    expect(copies().toSorted()).toEqual([0, 2]);
    await cluster.close();
  },
);
