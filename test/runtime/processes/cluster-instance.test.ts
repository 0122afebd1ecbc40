// What an instance reports to each gateway about the requests of the others.
import { expect, it, vi } from 'vitest';
import type { RequestId } from '../../../src/core/protocol/ids.ts';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { ClusterInstance } from '../../../src/runtime/processes/cluster-instance.ts';
import { heartbeatMs, type Peer, PeerSession } from '../../../src/runtime/processes/peer-session.ts';
import { emptySnapshot } from '../../../src/runtime/snapshots/metric-snapshots.ts';
import type { ToThread } from '../../../src/runtime/threads/thread-protocol.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import {
  type InstanceStatus,
  type PeerAnnouncement,
  readOutputs,
  readPeer,
  readStatus,
} from '../../../src/runtime/wire/messages.ts';
import { settled } from '../bus/settled.ts';
import { livePrompt, liveRequest, liveRoot } from '../threads/instances.ts';

it('what a gateway places is sent to another one soon and in its reports, until it ends or its gateway does', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] });
  const [hub, root] = [new MemoryHub(), liveRoot()];
  const sent: RequestId[] = [];
  const send = (message: ToThread): void => void (message.kind === 'submit' && sent.push(message.request.id));
  const undefinedParts = { fetchBytesPerToken: undefined, stageLayers: undefined, pagesAddress: undefined };
  const instance = new ClusterInstance({
    ...{ bus: hub.connect(), name: 'i', incarnation: 1, log: () => {}, root, capacityTokens: 9_000, vocabSize: 1e6 },
    agreement: { hashKey: [1, 2, 3, 4], modelFingerprint: root.modelFingerprint, root, pages: undefined },
    ...{ ...undefinedParts, isa: 'any', thread: { send, interrupt: () => {} }, role: 'mixed', canSwitchRole: false },
    ...{ isManager: () => undefined, onReplaced: () => {} },
  });
  const gateway = (name: string) => {
    const own: { peer?: Peer<PeerAnnouncement>; others?: InstanceStatus['others']; soon?: InstanceStatus['others'] } =
      {};
    const process = { bus: hub.connect(), name, incarnation: 1, log: () => {} };
    const session = new PeerSession<PeerAnnouncement>(process, 'gateway', {
      ...{ announcement: () => ({ traces: false }), readAnnouncement: readPeer, onLost: () => {} },
      onMessage: (_, bytes) => {
        own.soon = readOutputs(bytes).others;
      },
      onJoined: (peer) => {
        own.peer = peer;
      },
      onStatus: (_, bytes) => {
        own.others = readStatus(bytes).others;
      },
    });
    session.start();
    const submit = (id: RequestId): void => {
      const request = liveRequest(id, livePrompt(1, 40), 5);
      if (own.peer === undefined) throw new Error('The instance has not joined');
      session.send(own.peer, encode({ kind: 'submit', request }));
    };
    return { own, submit, close: () => session.close() };
  };
  try {
    instance.start({ ...emptySnapshot, ready: true });
    const [a, b] = [gateway('a'), gateway('b')];
    const othersOfA = async (): Promise<InstanceStatus['others']> => {
      for (let i = 0; i < 3; i++) {
        vi.advanceTimersByTime(heartbeatMs);
        await settled();
      }
      return b.own.others;
    };
    const none = { prefills: [], rows: 0, tokens: 0 };
    expect(await othersOfA()).toEqual(none);
    for (const id of ['1', '2', '3']) a.submit(id);
    await settled();
    vi.advanceTimersByTime(heartbeatMs / 10);
    await settled();
    // Before the next heartbeat, and not to the gateway that placed them.
    expect([a.own.soon?.prefills, b.own.soon?.prefills[0]?.prompts]).toEqual([[], 3]);
    expect(await othersOfA()).toEqual({
      ...none,
      prefills: [{ priority: 0, prompts: 3, tokens: 120, keyRows: 3 * 820 }],
    });
    const output = (
      events: readonly (readonly [RequestId, GenerationEvent])[],
      prefilled: readonly RequestId[] = [],
    ) => {
      const nothing = { released: [], steps: [], pins: [], kvEvents: [], kvSnapshot: undefined, snapshot: undefined };
      instance.onOutputs({ kind: 'events', events, prefilled, ...nothing });
    };
    const [first = '', second = '', third = ''] = sent;
    output([[first, { kind: 'started', cachedTokens: 16 }]], [third]);
    // The third prompt waits for its decode instance, and counts there.
    expect(await othersOfA()).toEqual({
      ...none,
      prefills: [{ priority: 0, prompts: 2, tokens: 64, keyRows: 24 * 16 + 300 + 820 }],
    });
    output([[first, { kind: 'tokens', tokens: Int32Array.of(1, 2), logprobs: undefined }]]);
    const rest = { prefills: [{ priority: 0, prompts: 1, tokens: 40, keyRows: 820 }], rows: 1, tokens: 42 };
    expect(await othersOfA()).toEqual(rest);
    output([[first, { kind: 'finished', reason: 'stop' }]]);
    expect(await othersOfA()).toEqual({ ...rest, rows: 0, tokens: 0 });
    output([second, third].map((id) => [id, { kind: 'finished', reason: 'stop' }]));
    expect(await othersOfA()).toEqual(none);
    a.submit('4');
    expect((await othersOfA())?.prefills).toHaveLength(1);
    a.close();
    // No other gateway is left.
    expect(await othersOfA()).toBeUndefined();
    b.close();
    await instance.close();
  } finally {
    vi.useRealTimers();
  }
});
