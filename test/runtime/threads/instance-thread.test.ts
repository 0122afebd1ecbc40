// An instance's thread from its owner's side: the backlog of unread messages is bounded.
import { expect, test } from 'vitest';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { InstanceThread } from '../../../src/runtime/threads/instance-thread.ts';
import { subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import { liveRequest } from './instances.ts';

test('a thread that reads nothing is terminated when its backlog exceeds the limit', async () => {
  const hub = new MemoryHub();
  const bus = hub.connect();
  const lines: string[] = [];
  const thread = new InstanceThread({
    entry: new URL('./held-worker.mjs', import.meta.url),
    data: {
      settings: { dies: false, flags: new Int32Array(new SharedArrayBuffer(8)) },
      ...{ address: '0', incarnation: 1, role: 'mixed', receivesPrompts: false, peers: 'none' },
      ...{ pages: undefined, traces: false, hashKey: new Uint32Array(4), loaded: undefined },
    },
    ...{ hub, bus, log: (line: string) => void lines.push(line), onOutputs: () => {}, backlogBytesMax: 2 ** 16 },
  });
  await thread.ready;
  const gone = new Promise<void>((resolve) => subscribeTo(bus, 'gone', ['0', 1], () => resolve()));
  // The thread reads no message while it runs this request.
  thread.send({ kind: 'submit', request: liveRequest('held', [1, 2, 3], 4) });
  const long = Array.from({ length: 5_000 }, (_, i) => i);
  for (let i = 0; i < 8; i++) thread.send({ kind: 'submit', request: liveRequest(`long ${i}`, long, 4) });
  await Promise.all([thread.close(), gone]);
  expect(lines).toEqual([
    expect.stringMatching(/^Instance thread terminated: it has not read \d+ bytes, the limit is 65536$/),
  ]);
  await bus.close();
});
