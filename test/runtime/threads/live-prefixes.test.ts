// Prefix fetches: a `missing` reply ends the fetch that it belongs to, and no other.
import { describe, expect, it } from 'vitest';
import { StepTracer } from '../../../src/runtime/threads/step-tracer.ts';
import { LiveHandOffs } from '../../../src/runtime/transfer/live-hand-offs.ts';
import type { Messenger } from '../../../src/runtime/transfer/messenger.ts';

const expected = { kind: 'expectPrefix', id: 'r', from: 1, pages: Int32Array.of(4, 5) } as const;
const missing = { kind: 'prefixMissing', id: 'r' } as const;

/** Opens and closes receive buffers; sends nothing. */
function receiveBuffers(): { readonly messenger: Messenger; readonly open: Set<string> } {
  const open = new Set<string>();
  let count = 0;
  const messenger: Messenger = {
    counts: { pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0, copySeconds: 0, faults: 0 },
    nextPoolStep: 1,
    open: () => {
      const handle = `buffer ${++count}`;
      open.add(handle);
      return handle;
    },
    arrivals: () => undefined,
    close: (handle) => void open.delete(handle),
    received: () => [],
    unreachable: () => [],
    send: () => {
      throw new Error('Unexpected send');
    },
    stop: () => {},
    pending: () => 0,
    transportTo: () => undefined,
  };
  return { messenger, open };
}

describe('a prefix that is missing at its source', () => {
  it('closes the receive buffer if the reply is from the current source', () => {
    const { messenger, open } = receiveBuffers();
    const shape = { groups: [{ layers: 2, window: undefined }], layers: [] };
    const handOffs = new LiveHandOffs({ post: () => {}, messenger, shape, pageBytes: 8 });
    handOffs.prefixes.expect(expected);
    // A reply from an earlier source of the same request.
    handOffs.onMessage(2, { kind: 'message', message: missing, receiveBuffer: undefined });
    expect(open.size).toBe(1);
    handOffs.onMessage(1, { kind: 'message', message: missing, receiveBuffer: undefined });
    expect(open.size).toBe(0);
    expect(handOffs.prefixes.isExpecting).toBe(false);
  });

  it('appears in traces once, as a failed fetch', () => {
    const tracer = new StepTracer(true);
    tracer.onEffect(expected);
    tracer.onEvent({ kind: 'peer', from: 1, message: missing });
    expect(tracer.take()).toMatchObject([{ kind: 'fetch', aborted: true, rows: [['r', 0, 0]] }]);
    tracer.onEvent({ kind: 'loaded', id: 'r', source: 1, to: 0 });
    expect(tracer.take()).toEqual([]);
  });
});

it('has the step times that the instance learns in traces, and when the request was received', () => {
  const tracer = new StepTracer(true);
  const inFlight = [{ id: 'r', sequence: { computed: 0, planned: 8 } }];
  tracer.onEvent({ kind: 'submit', request: { id: 'r' } } as unknown as Parameters<typeof tracer.onEvent>[0]);
  for (const endUs of [1_500, 1_800]) {
    tracer.planned(endUs - 300);
    tracer.begin({ inFlight } as unknown as Parameters<typeof tracer.begin>[0]);
    tracer.end(endUs, false);
  }
  const [first, second] = tracer.take();
  expect([first, second].map((step) => (step?.endedUs ?? 0) - (step?.startedUs ?? 0))).toEqual([300, 300]);
  expect(second?.startedUs).toBe(first?.endedUs);
  expect([first?.received?.map(([id]) => id), second?.received]).toEqual([['r'], undefined]);
});
