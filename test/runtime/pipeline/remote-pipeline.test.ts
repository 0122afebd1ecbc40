// Members of groups in different processes, with threads that record what they receive: messages about ended prompts.
import { afterEach, describe, expect, it } from 'vitest';
import type { InstanceIndex } from '../../../src/core/protocol/ids.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { RemotePipeline } from '../../../src/runtime/pipeline/remote-pipeline.ts';
import type { ToThread } from '../../../src/runtime/threads/thread-protocol.ts';
import type { PeerContext } from '../../../src/runtime/transfer/peer-context.ts';
import { settled } from '../bus/settled.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

function member(hub: MemoryHub, name: string) {
  const receivedMessages: ToThread[] = [];
  const names = new Map<InstanceIndex, string>();
  const context: PeerContext = {
    process: { bus: hub.connect(), name, incarnation: 1, log: () => {} },
    thread: { send: (message) => void receivedMessages.push(message) },
    requests: { register: () => undefined, onReceived: () => {}, release: () => {} },
    names,
  };
  const pipeline = new RemotePipeline(context, { layers: 2, promptsOut: { add: () => 0 }, prefixes: undefined });
  closing.push(() => pipeline.close());
  pipeline.start();
  const indexOf = (other: string) => [...names].find(([, known]) => known === other)?.[0];
  return { pipeline, receivedMessages, indexOf };
}

const chunk = { from: 0, tokens: 8, cachedTokens: 0 };
const receiveBuffer = `127.0.0.1:9/1/${'0'.repeat(16)}/4`;

describe('activations of an ended prompt', () => {
  it.each([receiveBuffer, undefined])('free the buffers of both sides: the receive buffer is %s', async (where) => {
    const hub = new MemoryHub();
    const [a, b] = [member(hub, 'a'), member(hub, 'b')];
    await settled();
    const [toB = 0, fromA = 0] = [a.indexOf('b'), b.indexOf('a')];
    const rows = { kind: 'activations', number: 7, id: 'g.1.1/r', chunk, receiveBuffer: where } as const;
    a.pipeline.send(toB, rows);
    await settled();
    expect(a.receivedMessages).toEqual([
      { kind: 'peerMessage', from: toB, wire: { kind: 'activationsCancelled', number: 7 } },
    ]);
    // The member receives the activations of an unknown request, and closes their receive buffer.
    expect(b.receivedMessages).toEqual(where === undefined ? [] : [{ kind: 'peerMessage', from: fromA, wire: rows }]);
  });
});
