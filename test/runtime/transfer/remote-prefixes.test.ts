// Prefix fetch between processes, with threads that only record messages: ids on each side, answers, and lost peers.
import { afterEach, describe, expect, it } from 'vitest';
import type { RequestId } from '../../../src/core/protocol/ids.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { ToThread } from '../../../src/runtime/threads/thread-protocol.ts';
import { type PrefixPeerWire, RemotePrefixes } from '../../../src/runtime/transfer/remote-prefixes.ts';
import { settled } from '../bus/settled.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

class RecordingThread {
  readonly receivedMessages: ToThread[] = [];
  send(message: ToThread): void {
    this.receivedMessages.push(message);
  }
  /** Sender and request of the last message. */
  get last(): { readonly from: number; readonly id: RequestId } {
    const last = this.receivedMessages.at(-1);
    if (last?.kind !== 'peerMessage' || last.wire.kind !== 'message') throw new Error('no message has arrived');
    return { from: last.from, id: last.wire.message.id };
  }
}

function member(hub: MemoryHub, name: string, incarnation = 1, isStore = false) {
  const thread = new RecordingThread();
  const process = { bus: hub.connect(), name, incarnation, log: () => {} };
  const names = new Map<number, string>();
  const prefixes = new RemotePrefixes({ process, thread, names }, isStore);
  closing.push(() => prefixes.close());
  prefixes.start();
  return { thread, names, prefixes };
}

const chain = { blocks: 1, words: Uint32Array.of(1, 2, 3, 4) };
const fetchOf = (id: RequestId): PrefixPeerWire => ({
  ...{ kind: 'message', receiveBuffer: 'there' },
  message: { kind: 'fetch', id, chain, from: 0 },
});
const messageOf = (kind: 'prefixMissing' | 'cancelPrefix', id: RequestId) =>
  ({ kind: 'message', message: { kind, id }, receiveBuffer: undefined }) as const;

async function pair() {
  const hub = new MemoryHub();
  const [a, b] = [member(hub, 'a'), member(hub, 'b', 2)];
  await settled();
  const [toB = 0, toA = 0] = [
    a.prefixes.indexOf({ name: 'b', incarnation: 2 }),
    b.prefixes.indexOf({ name: 'a', incarnation: 1 }),
  ];
  return { a, b, toB, toA };
}

describe('prefixes between processes', () => {
  it('are fetched in both directions at once, each under an id of its own, and answered under the id of the fetcher', async () => {
    const { a, b, toB, toA } = await pair();
    a.prefixes.send(toB, fetchOf('g.1.1/r'));
    b.prefixes.send(toA, fetchOf('g.1.1/r'));
    await settled();
    const [atA, atB] = [a.thread.last, b.thread.last];
    expect([atA.id, atB.id]).not.toContain('g.1.1/r');
    expect(b.thread.receivedMessages).toEqual([{ kind: 'peerMessage', from: atB.from, wire: fetchOf(atB.id) }]);
    b.prefixes.send(atB.from, { kind: 'prefix', id: atB.id, blocks: 1 });
    a.prefixes.send(atA.from, messageOf('prefixMissing', atA.id));
    await settled();
    expect(a.thread.receivedMessages.at(-1)).toEqual({
      ...{ kind: 'peerMessage', from: toB },
      wire: { kind: 'prefix', id: 'g.1.1/r', blocks: 1 },
    });
    expect(b.thread.receivedMessages.at(-1)).toEqual({
      kind: 'peerMessage',
      from: toA,
      wire: messageOf('prefixMissing', 'g.1.1/r'),
    });
    a.prefixes.send(toB, { kind: 'prefixReceived', id: 'g.1.1/r' });
    a.prefixes.send(toB, messageOf('cancelPrefix', 'g.1.1/s'));
    await settled();
    expect(b.thread.receivedMessages.slice(-2)).toEqual([
      { kind: 'peerMessage', from: atB.from, wire: { kind: 'prefixReceived', id: atB.id } },
      { kind: 'peerMessage', from: atB.from, wire: messageOf('cancelPrefix', atB.id.replace('/r', '/s')) },
    ]);
  });

  it('end with the peer: its loss is reported, and a later fetch from it fails immediately', async () => {
    const { a, b, toB, toA } = await pair();
    b.prefixes.close();
    await settled();
    expect(a.thread.receivedMessages).toEqual([{ kind: 'peerMessage', from: toB, wire: { kind: 'ended' } }]);
    expect([...a.names]).toEqual([]);
    expect(a.prefixes.indexOf({ name: 'b', incarnation: 2 })).toBeUndefined();
    a.prefixes.send(toB, fetchOf('g.1.1/r'));
    expect(a.thread.receivedMessages.at(-1)).toEqual({
      kind: 'peerMessage',
      from: toB,
      wire: messageOf('prefixMissing', 'g.1.1/r'),
    });
    a.prefixes.send(toB, messageOf('cancelPrefix', 'g.1.1/r'));
    expect([a.thread.receivedMessages.length, b.thread.receivedMessages.length, toA >= 0]).toEqual([2, 0, true]);
  });

  it('are not fetched from another incarnation of the same name', async () => {
    const { a } = await pair();
    expect(a.prefixes.indexOf({ name: 'b', incarnation: 3 })).toBeUndefined();
    expect(a.prefixes.indexOf({ name: 'a', incarnation: 1 })).toBeUndefined();
  });
});
