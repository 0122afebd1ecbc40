// Gateways whose event loop stalls: another thread repeats their last announcement, so that instances keep their sessions.
import { expect, it, vi } from 'vitest';
import { AuthenticatedBus } from '../../../src/runtime/bus/authenticated-bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { connectNats } from '../../../src/runtime/bus/nats-bus.ts';
import { HeartbeatRepetition, HeartbeatThread } from '../../../src/runtime/processes/heartbeat-thread.ts';
import { heartbeatMs, PeerSession, silentUs } from '../../../src/runtime/processes/peer-session.ts';
import { decode } from '../../../src/runtime/wire/codec.ts';
import { encodeFrame } from '../../../src/runtime/wire/frames.ts';
import { type PeerAnnouncement, readPeer } from '../../../src/runtime/wire/messages.ts';
import { statedVersions } from '../../../src/runtime/wire/versions.ts';
import { NatsServer, natsInstalled } from '../bus/nats-server.ts';
import { settled } from '../bus/settled.ts';

it('an instance keeps the session of a gateway whose event loop stalls, until it counts as hung', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] });
  try {
    const hub = new MemoryHub();
    const [bus, stalled] = [hub.connect(), hub.connect()];
    const log: string[] = [];
    const instance = new PeerSession<PeerAnnouncement>({ bus, name: 'i', incarnation: 1, log: () => {} }, 'instance', {
      readAnnouncement: readPeer,
      onJoined: ({ member }) => void log.push(`${member.name} joined`),
      onLost: ({ member }) => void log.push(`${member.name} lost`),
      onMessage: () => {},
    });
    instance.start();
    await settled();
    const data = { settings: {}, words: new Int32Array(2), intervalMs: heartbeatMs, hungMs: 20_000 };
    const repetition = new HeartbeatRepetition(stalled, data);
    repetition.announced({ subject: 'beat.gateway', announcement: { ...statedVersions(), name: 'g', incarnation: 1 } });
    const passMs = async (ms: number): Promise<void> => {
      for (let atMs = 0; atMs < ms; atMs += heartbeatMs) {
        vi.advanceTimersByTime(heartbeatMs);
        repetition.tick();
        await settled();
      }
    };
    await passMs(3 * heartbeatMs);
    // The gateway leads: its first frame starts the session.
    const ack = encodeFrame({ kind: 'ack', session: 1, sent: 0, received: 0, bytes: new Uint8Array() });
    stalled.publish('link.i.1.g.1', ack);
    await passMs(data.hungMs);
    expect(log).toEqual(['g joined']);
    await passMs(silentUs / 1000);
    expect(log).toEqual(['g joined', 'g lost']);
    instance.close();
  } finally {
    vi.useRealTimers();
  }
});

it('nothing is repeated while the event loop announces itself', () => {
  const numbers: unknown[] = [];
  const words = new Int32Array(2);
  const publish = (_: string, bytes: Uint8Array): void => void numbers.push(decode(bytes));
  const data = { settings: {}, words, intervalMs: heartbeatMs, hungMs: 20_000 };
  vi.useFakeTimers({ toFake: ['performance'] });
  try {
    const repetition = new HeartbeatRepetition({ publish }, data);
    const tick = (): void => {
      vi.advanceTimersByTime(heartbeatMs);
      repetition.tick();
    };
    repetition.announced({ subject: 'beat.gateway', announcement: { name: 'g' } });
    for (let number = 1; number <= 9; number++) {
      words.set([number, number]);
      tick();
    }
    expect(numbers).toEqual([]);
    // The numbers continue those of the event loop.
    for (let i = 0; i < 3; i++) tick();
    expect(numbers).toEqual([10, 11].map((number) => ({ name: 'g', number })));
    // One late tick is enough: time counts, not ticks.
    words[1] = 10;
    tick();
    vi.advanceTimersByTime(5 * heartbeatMs);
    tick();
    expect(numbers).toHaveLength(3);
  } finally {
    vi.useRealTimers();
  }
});

it('the last announcement of each role is repeated', () => {
  const subjects: string[] = [];
  const data = { settings: {}, words: new Int32Array(2), intervalMs: heartbeatMs, hungMs: 20_000 };
  vi.useFakeTimers({ toFake: ['performance'] });
  try {
    const repetition = new HeartbeatRepetition({ publish: (subject) => void subjects.push(subject) }, data);
    for (const role of ['gateway', 'forwarder', 'gateway'])
      repetition.announced({ subject: `beat.${role}`, announcement: { name: 'g' } });
    for (let i = 0; i < 3; i++) {
      repetition.tick();
      vi.advanceTimersByTime(heartbeatMs);
    }
    expect(subjects).toEqual(['beat.gateway', 'beat.forwarder']);
  } finally {
    vi.useRealTimers();
  }
});

it.skipIf(!natsInstalled && process.env.CI === undefined)(
  'a thread repeats them over NATS during a stall',
  async () => {
    const server = await NatsServer.start('-js');
    const own = { cluster: 'c', token: 'secret' };
    const bus = new AuthenticatedBus(await connectNats(server.url, own.cluster), { ...own, log: () => {} });
    const received: unknown[] = [];
    bus.subscribe('beat.gateway', (bytes) => void received.push(decode(bytes)));
    await bus.flush();
    const log: string[] = [];
    const entry = new URL('../../../dist/cli/serve/host/heartbeat-worker.js', import.meta.url);
    const settings = { ...own, nats: { urls: server.url } };
    const thread = new HeartbeatThread({ entry, settings, intervalMs: 10, log: (line) => void log.push(line) });
    try {
      expect(thread.nextNumber()).toBe(1);
      thread.announced('beat.gateway', { name: 'g' });
      // The event loop of this thread stalls, waiting on a word of its own, until the other one has repeated the announcement twice.
      const word = new Int32Array(new SharedArrayBuffer(4));
      for (const startedMs = performance.now(); Atomics.load(thread.numbers, 0) < 3; Atomics.wait(word, 0, 0, 5))
        if (performance.now() - startedMs > 10_000) throw new Error(`The thread repeats nothing: ${log.join()}`);
      while (received.length < 2) await new Promise((resolve) => setImmediate(resolve));
      expect(received.slice(0, 2)).toEqual([2, 3].map((number) => ({ name: 'g', number })));
    } finally {
      thread.close();
      await bus.close();
      await server.stop();
    }
    expect(log).toEqual([]);
  },
);
