// Members of groups between processes, with threads that only note what they are told: what is said of prompts that are over.
import { afterEach, describe, expect, it } from 'vitest';
import type { InstanceIndex } from '../../../src/core/protocol/ids.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { RemotePipeline } from '../../../src/runtime/pipeline/remote-pipeline.ts';
import type { ToThread } from '../../../src/runtime/threads/thread-protocol.ts';
import { settled } from '../bus/settled.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

function member(hub: MemoryHub, name: string) {
  const told: ToThread[] = [];
  const known = new Map<string, InstanceIndex>();
  const stages = new RemotePipeline({
    ...{ bus: hub.connect(), name, incarnation: 1, layers: 2, log: () => {} },
    thread: { send: (message) => void told.push(message) },
    met: (index, other) => void known.set(other, index),
    expect: () => undefined,
    sourceOf: () => undefined,
    leaves: () => 0,
  });
  closing.push(() => stages.close());
  stages.start();
  return { stages, told, known };
}

const chunk = { from: 0, tokens: 8, cachedTokens: 0 };
const landing = `127.0.0.1:9/1/${'0'.repeat(16)}/4`;

describe('rows of a prompt that is over here', () => {
  it.each([landing, undefined])('leave nobody waiting: their landing is %s', async (where) => {
    const hub = new MemoryHub();
    const [a, b] = [member(hub, 'a'), member(hub, 'b')];
    await settled();
    const [toB = 0, fromA = 0] = [a.known.get('b'), b.known.get('a')];
    const rows = { kind: 'rows', number: 7, id: 'g.1.1/r', chunk, landing: where } as const;
    a.stages.send(toB, rows);
    await settled();
    expect(a.told).toEqual([{ kind: 'peerMessage', from: toB, wire: { kind: 'rowsUnwanted', number: 7 } }]);
    // Whoever keeps a landing hears that it is used, for nothing, and closes it.
    expect(b.told).toEqual(where === undefined ? [] : [{ kind: 'peerMessage', from: fromA, wire: rows }]);
  });
});
