// Prompts on their way from process to process, with threads that only note what they are told: every answer, and every way that it can fail.
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { RequestId } from '../../../src/core/protocol/ids.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ToThread } from '../../../src/runtime/threads/thread-protocol.ts';
import type { RequestRegistry } from '../../../src/runtime/transfer/peer-context.ts';
import { RemotePromptsIn } from '../../../src/runtime/transfer/remote-prompts-in.ts';
import { type DepartingPrompt, RemotePromptsOut } from '../../../src/runtime/transfer/remote-prompts-out.ts';
import { settled } from '../bus/settled.ts';
import { liveRequest } from '../threads/instances.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
  vi.useRealTimers();
});

const gateway = { name: 'g', incarnation: 1, session: 2 };
const leaving = (id: string): DepartingPrompt => ({
  ...{ kind: 'reserve', id: `g.1.1/${id}`, gateway },
  request: liveRequest(id, [1, 2, 3], 4),
});
const decoder = { name: 'd', incarnation: 7 };

class NotedThread {
  readonly told: ToThread[] = [];
  send(message: ToThread): void {
    this.told.push(message);
  }
}

function prefills(hub: MemoryHub) {
  const thread = new NotedThread();
  const taken: RequestId[] = [];
  const process = { bus: hub.connect(), name: 'p', incarnation: 3, log: () => {} };
  const requests = { register: () => undefined, onReceived: () => {}, release: (id: RequestId) => taken.push(id) };
  const out = new RemotePromptsOut({ process, thread, requests, names: new Map() });
  closing.push(() => out.close());
  return { out, thread, taken };
}

function decodes(hub: MemoryHub, knows = true) {
  const thread = new NotedThread();
  const fates: string[] = [];
  const requests: RequestRegistry = {
    register: ({ session }, request) => (knows ? `g.1.${session}/${request.id}` : undefined),
    onReceived: (id) => fates.push(`received ${id}`),
    release: (id) => fates.push(`released ${id}`),
  };
  const process = { bus: hub.connect(), ...decoder, log: () => {} };
  const into = new RemotePromptsIn({ process, thread, requests });
  closing.push(() => into.close());
  return { into, thread, fates };
}

const asks = (id: string) =>
  ({
    kind: 'message',
    message: { kind: 'reserve', id, request: leaving('r').request },
    receiveBuffer: undefined,
  }) as const;
const says = (kind: 'reserved' | 'received' | 'declined' | 'release', id: string, receiveBuffer?: string) =>
  ({ kind: 'message', message: { kind, id }, receiveBuffer }) as const;

/** Both sides are there, and one has asked the other for room. @param knows the gateway's session */
async function asking(knows = true) {
  const hub = new MemoryHub();
  const [p, d] = [prefills(hub), decodes(hub, knows)];
  p.out.start();
  d.into.start();
  await settled();
  const to = p.out.add(leaving('r'), decoder);
  p.out.send(to, asks('g.1.1/r'));
  return { p, d, to };
}

describe('prompts between processes', () => {
  it('have an id of their own on each side, and are relayed until the prompt is received', async () => {
    const { p, d, to } = await asking();
    await settled();
    expect(d.thread.told).toMatchObject([
      {
        kind: 'peerMessage',
        from: 0,
        wire: { message: { kind: 'reserve', id: 'g.1.2/r', request: { id: 'g.1.2/r' } } },
      },
    ]);
    d.into.send(0, says('reserved', 'g.1.2/r', 'there'));
    await settled();
    expect(p.thread.told).toEqual([{ kind: 'peerMessage', from: to, wire: says('reserved', 'g.1.1/r', 'there') }]);
    const events = [{ kind: 'tokens', tokens: Int32Array.of(5), logprobs: undefined }] as const;
    p.out.send(to, { kind: 'firstEvents', id: 'g.1.1/r', events });
    await settled();
    expect(d.thread.told.at(-1)).toEqual({
      kind: 'peerMessage',
      from: 0,
      wire: { kind: 'firstEvents', id: 'g.1.2/r', events },
    });
    d.into.send(0, says('received', 'g.1.2/r'));
    await settled();
    expect([p.taken, d.fates]).toEqual([['g.1.1/r'], ['received g.1.2/r']]);
    // Later events belong to no request.
    d.into.send(0, says('received', 'g.1.2/r'));
    p.out.send(to, says('release', 'g.1.1/r'));
    await settled();
    expect([p.thread.told.length, d.thread.told.length]).toEqual([2, 2]);
  });

  it('stay expected where memory for them is given up, and is asked for again', async () => {
    const { p, d, to } = await asking();
    const withdraw = (id: string) =>
      ({ kind: 'message', message: { kind: 'withdraw', id, reservation: 0 }, receiveBuffer: undefined }) as const;
    p.out.send(to, withdraw('g.1.1/r'));
    const again = asks('g.1.1/r');
    p.out.send(to, { ...again, message: { ...again.message, reservation: 1 } });
    await settled();
    expect(d.thread.told).toMatchObject([
      { wire: { message: { kind: 'reserve', id: 'g.1.2/r' } } },
      { kind: 'peerMessage', from: 0, wire: withdraw('g.1.2/r') },
      { wire: { message: { kind: 'reserve', id: 'g.1.2/r', reservation: 1 } } },
    ]);
    const reserved = {
      kind: 'message',
      message: { kind: 'reserved', id: 'g.1.2/r', reservation: 1 },
      receiveBuffer: 'there',
    } as const;
    d.into.send(0, reserved);
    await settled();
    expect(p.thread.told).toEqual([
      { kind: 'peerMessage', from: to, wire: { ...reserved, message: { ...reserved.message, id: 'g.1.1/r' } } },
    ]);
    expect(d.fates).toEqual([]);
  });

  it('are let go of where the other side does not know their gateway', async () => {
    const { p, d, to } = await asking(false);
    await settled();
    expect(d.thread.told).toEqual([]);
    expect(p.thread.told).toEqual([{ kind: 'streamBroken', id: 'g.1.1/r', to }]);
  });

  it('wait for an instance that has not been heard of, and are let go of when it does not come', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const hub = new MemoryHub();
    const [p, d] = [prefills(hub), decodes(hub)];
    p.out.start();
    const [to, nowhere] = [p.out.add(leaving('r'), decoder), p.out.add(leaving('s'), { name: 'd', incarnation: 8 })];
    p.out.send(to, asks('g.1.1/r'));
    p.out.send(nowhere, asks('g.1.1/s'));
    d.into.start();
    await settled();
    expect(d.thread.told).toMatchObject([{ wire: { message: { kind: 'reserve', id: 'g.1.2/r' } } }]);
    await vi.advanceTimersByTimeAsync(3_500);
    expect(p.thread.told).toEqual([{ kind: 'streamBroken', id: 'g.1.1/s', to: nowhere }]);
  });

  it('end on both sides when one of them leaves: what has not landed is cancelled, what has goes on', async () => {
    const hub = new MemoryHub();
    const [p, d] = [prefills(hub), decodes(hub)];
    p.out.start();
    d.into.start();
    await settled();
    for (const id of ['r', 's', 't']) p.out.send(p.out.add(leaving(id), decoder), asks(`g.1.1/${id}`));
    await settled();
    d.into.send(0, says('received', 'g.1.2/r'));
    d.into.forget('g.1.2/t');
    p.out.close();
    await settled();
    expect(d.thread.told.slice(3)).toEqual([{ kind: 'cancel', id: 'g.1.2/s' }]);
    expect(d.fates).toEqual(['received g.1.2/r', 'released g.1.2/s']);
    const [q, e] = [prefills(hub), decodes(hub)];
    q.out.start();
    e.into.start();
    await settled();
    const to = q.out.add(leaving('r'), decoder);
    e.into.close();
    await settled();
    expect(q.thread.told).toEqual([{ kind: 'streamBroken', id: 'g.1.1/r', to }]);
  });
});
