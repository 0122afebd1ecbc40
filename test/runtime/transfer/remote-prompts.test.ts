// Hand-offs between processes, with threads that only record messages: every answer and every failure.
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { RequestId } from '../../../src/core/protocol/ids.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ToThread } from '../../../src/runtime/threads/thread-protocol.ts';
import type { RequestRegistry } from '../../../src/runtime/transfer/peer-context.ts';
import { RemotePromptsIn } from '../../../src/runtime/transfer/remote-prompts-in.ts';
import { type OutgoingPrompt, RemotePromptsOut } from '../../../src/runtime/transfer/remote-prompts-out.ts';
import { settled } from '../bus/settled.ts';
import { liveRequest } from '../threads/instances.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
  vi.useRealTimers();
});

const gateway = { name: 'g', incarnation: 1, session: 2 };
const leaving = (id: string): OutgoingPrompt => ({
  ...{ kind: 'reserve', id: `g.1.1/${id}`, gateway },
  request: liveRequest(id, [1, 2, 3], 4),
});
const decoder = { name: 'd', incarnation: 7 };

class RecordingThread {
  readonly receivedMessages: ToThread[] = [];
  send(message: ToThread): void {
    this.receivedMessages.push(message);
  }
}

function prefillSide(hub: MemoryHub, name = 'p') {
  const thread = new RecordingThread();
  const released: RequestId[] = [];
  const process = { bus: hub.connect(), name, incarnation: 3, log: () => {} };
  const requests = { register: () => undefined, onReceived: () => {}, release: (id: RequestId) => released.push(id) };
  const names = new Map<number, string>();
  const out = new RemotePromptsOut({ process, thread, requests, names });
  closing.push(() => out.close());
  return { out, thread, released, names };
}

function decodeSide(hub: MemoryHub, isKnown = true) {
  const thread = new RecordingThread();
  const outcomes: string[] = [];
  const requests: RequestRegistry = {
    register: ({ session }, request) => (isKnown ? `g.1.${session}/${request.id}` : undefined),
    onReceived: (id) => outcomes.push(`received ${id}`),
    release: (id) => outcomes.push(`released ${id}`),
  };
  const process = { bus: hub.connect(), ...decoder, log: () => {} };
  const into = new RemotePromptsIn({ process, thread, requests });
  closing.push(() => into.close());
  return { into, thread, outcomes };
}

const reserveOf = (id: string) =>
  ({
    kind: 'message',
    message: { kind: 'reserve', id, request: leaving('r').request },
    receiveBuffer: undefined,
  }) as const;
const messageOf = (kind: 'reserved' | 'received' | 'declined' | 'release', id: string, receiveBuffer?: string) =>
  ({ kind: 'message', message: { kind, id }, receiveBuffer }) as const;

/** Both sides are there, and one has asked the other for room. @param knows the gateway's session */
async function reserving(isKnown = true) {
  const hub = new MemoryHub();
  const [p, d] = [prefillSide(hub), decodeSide(hub, isKnown)];
  p.out.start();
  d.into.start();
  await settled();
  const to = p.out.add(leaving('r'), decoder);
  p.out.send(to, reserveOf('g.1.1/r'));
  return { p, d, to };
}

describe('prompts between processes', () => {
  it('have an id of their own on each side, and are relayed until the prompt is received', async () => {
    const { p, d, to } = await reserving();
    await settled();
    expect(d.thread.receivedMessages).toMatchObject([
      {
        kind: 'peerMessage',
        from: 0,
        wire: { message: { kind: 'reserve', id: 'g.1.2/r', request: { id: 'g.1.2/r' } } },
      },
    ]);
    d.into.send(0, messageOf('reserved', 'g.1.2/r', 'there'));
    await settled();
    expect(p.thread.receivedMessages).toEqual([
      { kind: 'peerMessage', from: to, wire: messageOf('reserved', 'g.1.1/r', 'there') },
    ]);
    const events = [{ kind: 'tokens', tokens: Int32Array.of(5), logprobs: undefined }] as const;
    p.out.send(to, { kind: 'firstEvents', id: 'g.1.1/r', events });
    await settled();
    expect(d.thread.receivedMessages.at(-1)).toEqual({
      kind: 'peerMessage',
      from: 0,
      wire: { kind: 'firstEvents', id: 'g.1.2/r', events },
    });
    d.into.send(0, messageOf('received', 'g.1.2/r'));
    await settled();
    expect([p.released, d.outcomes]).toEqual([['g.1.1/r'], ['received g.1.2/r']]);
    // Later events belong to no request.
    d.into.send(0, messageOf('received', 'g.1.2/r'));
    p.out.send(to, messageOf('release', 'g.1.1/r'));
    await settled();
    expect([p.thread.receivedMessages.length, d.thread.receivedMessages.length]).toEqual([2, 2]);
  });

  it('in parts end once each part is received, also if a part is requested late; a sender alone replaces its group', async () => {
    const hub = new MemoryHub();
    const [p, q, d] = [prefillSide(hub, 'p'), prefillSide(hub, 'q'), decodeSide(hub)];
    for (const side of [p.out, q.out, d.into]) side.start();
    await settled();
    const senders = ['p', 'q'].map((name) => ({ name, incarnation: 3, id: 'g.1.1/r' }));
    const [toP, toQ] = [p, q].map(({ out }) => out.add({ ...leaving('r'), senders }, decoder));
    const one = reserveOf('g.1.1/r');
    const part = { ...one, message: { ...one.message, senders: [0, 1], sendersRequest: true } };
    p.out.send(toP, part);
    await settled();
    expect(d.thread.receivedMessages).toMatchObject([
      { wire: { message: { kind: 'reserve', senders: [0, 1], sendersRequest: true } } },
    ]);
    d.into.send(0, messageOf('received', 'g.1.2/r'));
    q.out.send(toQ, part);
    await settled();
    expect(d.outcomes).toEqual([]);
    d.into.send(1, messageOf('received', 'g.1.2/r'));
    expect(d.outcomes).toEqual(['received g.1.2/r']);
    // The group of the next prompt does not form.
    const next = p.out.add({ ...leaving('s'), senders: senders.map((each) => ({ ...each, id: 'g.1.1/s' })) }, decoder);
    const alone = reserveOf('g.1.1/s');
    p.out.send(next, { ...alone, message: { ...alone.message, senders: [0, 1], sendersRequest: true } });
    p.out.send(next, { ...alone, message: { ...alone.message, reservation: 1 } });
    await settled();
    d.into.send(0, messageOf('received', 'g.1.2/s'));
    expect(d.outcomes).toEqual(['received g.1.2/r', 'received g.1.2/s']);
  });

  it('stay expected after a withdrawn reservation, which is repeated', async () => {
    const { p, d, to } = await reserving();
    const withdraw = (id: string) =>
      ({ kind: 'message', message: { kind: 'withdraw', id, reservation: 0 }, receiveBuffer: undefined }) as const;
    p.out.send(to, withdraw('g.1.1/r'));
    const again = reserveOf('g.1.1/r');
    p.out.send(to, { ...again, message: { ...again.message, reservation: 1 } });
    await settled();
    expect(d.thread.receivedMessages).toMatchObject([
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
    expect(p.thread.receivedMessages).toEqual([
      { kind: 'peerMessage', from: to, wire: { ...reserved, message: { ...reserved.message, id: 'g.1.1/r' } } },
    ]);
    expect(d.outcomes).toEqual([]);
  });

  it('are released if their gateway is unknown to the other side', async () => {
    const { p, d, to } = await reserving(false);
    await settled();
    expect(d.thread.receivedMessages).toEqual([]);
    expect(p.thread.receivedMessages).toEqual([{ kind: 'streamBroken', id: 'g.1.1/r', to }]);
  });

  it('wait for an instance that has not joined, and are released if it does not join', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const hub = new MemoryHub();
    const [p, d] = [prefillSide(hub), decodeSide(hub)];
    p.out.start();
    const [to, nowhere] = [p.out.add(leaving('r'), decoder), p.out.add(leaving('s'), { name: 'd', incarnation: 8 })];
    p.out.send(to, reserveOf('g.1.1/r'));
    p.out.send(nowhere, reserveOf('g.1.1/s'));
    d.into.start();
    await settled();
    expect(d.thread.receivedMessages).toMatchObject([{ wire: { message: { kind: 'reserve', id: 'g.1.2/r' } } }]);
    await vi.advanceTimersByTimeAsync(3_500);
    expect(p.thread.receivedMessages).toEqual([
      { kind: 'streamBroken', id: 'g.1.1/s', to: nowhere },
      { kind: 'peerMessage', from: nowhere, wire: { kind: 'ended' } },
    ]);
    expect([...p.names]).toEqual([[to, 'd']]);
  });

  it('end on both sides when one of them leaves: received prompts continue, others are cancelled', async () => {
    const hub = new MemoryHub();
    const [p, d] = [prefillSide(hub), decodeSide(hub)];
    p.out.start();
    d.into.start();
    await settled();
    for (const id of ['r', 's', 't']) p.out.send(p.out.add(leaving(id), decoder), reserveOf(`g.1.1/${id}`));
    await settled();
    d.into.send(0, messageOf('received', 'g.1.2/r'));
    d.into.forget('g.1.2/t');
    p.out.close();
    await settled();
    expect(d.thread.receivedMessages.slice(3)).toEqual([{ kind: 'cancel', id: 'g.1.2/s' }]);
    expect(d.outcomes).toEqual(['received g.1.2/r', 'released g.1.2/s']);
    const [q, e] = [prefillSide(hub), decodeSide(hub)];
    q.out.start();
    e.into.start();
    await settled();
    const to = q.out.add(leaving('r'), decoder);
    e.into.close();
    await settled();
    expect(q.thread.receivedMessages).toEqual([
      { kind: 'streamBroken', id: 'g.1.1/r', to },
      { kind: 'peerMessage', from: to, wire: { kind: 'ended' } },
    ]);
  });
});
