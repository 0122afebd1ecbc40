// The contract of a bus for every implementation, and for NATS also the loss and return of its server.
import { Kvm } from '@nats-io/kv';
import { connect as dial } from '@nats-io/transport-node';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryBus } from '../../../src/runtime/bus/memory-bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { MemoryRecords } from '../../../src/runtime/bus/memory-records.ts';
import { connectNats } from '../../../src/runtime/bus/nats-bus.ts';
import { NatsServer, natsInstalled } from './nats-server.ts';
import { ThreadedBus } from './threaded-bus.ts';

/** Size of one part of a snapshot. */
const partBytes = 256 * 1024;
const bytes = (text: string) => new TextEncoder().encode(text);
const text = (value: Uint8Array) => new TextDecoder().decode(value);

/** Resolves with the first `count` messages on the subject. */
function collect(bus: Bus, subject: string, count: number): Promise<readonly string[]> {
  return new Promise((resolve) => {
    const received: string[] = [];
    const stop = bus.subscribe(subject, (payload, on) => {
      received.push(`${on} ${text(payload)}`);
      if (received.length < count) return;
      stop();
      resolve(received);
    });
  });
}

function whenConnection(bus: Bus, expected: boolean): Promise<void> {
  return new Promise((resolve) => {
    const stop = bus.watchConnection((up) => {
      if (up === expected) queueMicrotask(() => resolve(stop()));
    });
  });
}

function testBus(connect: () => Promise<Bus>): void {
  test('delivers messages in order to subscriptions with exact subjects and wildcards', async () => {
    const [a, b] = await Promise.all([connect(), connect()]);
    const exact = collect(b, 'beat.one', 2);
    const word = collect(b, 'beat.*', 3);
    const all = collect(b, 'beat.>', 4);
    const own = collect(a, 'beat.one', 2);
    await Promise.all([a.flush(), b.flush()]);
    a.publish('beat.one', bytes('1'));
    a.publish('beat.two.deep', bytes('2'));
    a.publish('beat', bytes('none'));
    a.publish('beat.two', bytes('3'));
    a.publish('beat.one', bytes('4'));
    expect(await exact).toEqual(['beat.one 1', 'beat.one 4']);
    expect(await own).toEqual(['beat.one 1', 'beat.one 4']);
    expect(await word).toEqual(['beat.one 1', 'beat.two 3', 'beat.one 4']);
    expect(await all).toEqual(['beat.one 1', 'beat.two.deep 2', 'beat.two 3', 'beat.one 4']);
    await Promise.all([a.close(), b.close()]);
  });

  test('delivers copies of payloads, and nothing after unsubscribing', async () => {
    const bus = await connect();
    const received: string[] = [];
    const stop = bus.subscribe('copy', (payload) => received.push(text(payload)));
    const payload = bytes('before');
    const end = collect(bus, 'end', 1);
    await bus.flush();
    bus.publish('copy', payload);
    const first = collect(bus, 'first', 1);
    await bus.flush();
    payload.fill(0);
    bus.publish('first', bytes(''));
    await first;
    stop();
    bus.publish('copy', bytes('after'));
    bus.publish('end', bytes(''));
    await end;
    expect(received).toEqual(['before']);
    await bus.close();
  });

  test('writes a record only if the given revision is current', async () => {
    const [a, b] = await Promise.all([connect(), connect()]);
    expect(await a.records.read('holder')).toBeUndefined();
    const first = await a.records.write('holder', bytes('a'), undefined);
    expect(await b.records.write('holder', bytes('b'), undefined)).toBeUndefined();
    expect(await b.records.read('holder')).toMatchObject({ revision: first });
    const second = await b.records.write('holder', bytes('b'), first);
    expect(second).toBeGreaterThan(first ?? Number.POSITIVE_INFINITY);
    expect(await a.records.write('holder', bytes('late'), first)).toBeUndefined();
    expect(text((await a.records.read('holder'))?.value ?? bytes(''))).toBe('b');
    await Promise.all([a.close(), b.close()]);
  });

  test('accepts one of several concurrent first writes', async () => {
    const buses = await Promise.all([connect(), connect(), connect()]);
    const revisions = await Promise.all(buses.map((bus) => bus.records.write('race', bytes('x'), undefined)));
    expect(revisions.filter((revision) => revision !== undefined)).toHaveLength(1);
    await Promise.all(buses.map((bus) => bus.close()));
  });

  test('removes a record only if the given revision is current, and lets it be written again', async () => {
    const bus = await connect();
    const first = await bus.records.write('gone', bytes('1'), undefined);
    if (first === undefined) throw new Error('The record existed');
    expect(await bus.records.remove('gone', first + 1_000)).toBe(false);
    expect(await bus.records.remove('gone', first)).toBe(true);
    expect(await bus.records.read('gone')).toBeUndefined();
    expect(await bus.records.remove('gone', first)).toBe(false);
    expect(await bus.records.write('gone', bytes('2'), first)).toBeUndefined();
    expect(await bus.records.write('gone', bytes('3'), undefined)).toBeGreaterThan(first);
    await bus.close();
  });

  test('keeps snapshots apart from records, overwrites them unconditionally, and holds a part of the full size', async () => {
    const [a, b] = await Promise.all([connect(), connect()]);
    const part = new Uint8Array(partBytes).map((_, i) => i % 251);
    const first = await a.snapshots.put('apart', bytes('1'));
    expect(await a.records.read('apart')).toBeUndefined();
    const second = await b.snapshots.put('apart', part);
    expect(second).toBeGreaterThan(first);
    const read = await a.snapshots.read('apart');
    expect(read?.revision).toBe(second);
    expect(Buffer.compare(read?.value ?? bytes(''), part)).toBe(0);
    expect(await a.snapshots.write('apart', bytes('late'), first)).toBeUndefined();
    expect(await a.snapshots.write('apart', bytes('now'), second)).toBeGreaterThan(second);
    expect(await a.snapshots.remove('apart', second)).toBe(false);
    await Promise.all([a.close(), b.close()]);
  });

  test('refuses an invalid subject and names it', async () => {
    const bus = await connect();
    for (const subject of ['', 'a..b', 'a b', 'a.', '>.a', 'ä', 'x'.repeat(201)])
      expect(() => bus.subscribe(subject, () => {})).toThrow('Cannot use the subject');
    for (const subject of ['a.*', 'a.>']) expect(() => bus.publish(subject, bytes(''))).toThrow(subject);
    await expect(async () => bus.records.read('a.*')).rejects.toThrow('Cannot use the subject');
    await bus.close();
  });

  test('reports that it is closed, and ignores further use', async () => {
    const bus = await connect();
    const states: boolean[] = [];
    bus.watchConnection((up) => states.push(up));
    const closed = Promise.all([bus.close(), bus.close()]);
    const use = (): void => {
      bus.publish('late', bytes(''));
      bus.subscribe('late', () => {})();
    };
    // A timer may use the bus while it closes.
    use();
    await closed;
    use();
    await expect(bus.flush()).rejects.toThrow();
    expect(states).toEqual([true, false]);
  });
}

describe('memory, endpoints on one thread', () => {
  const hub = new MemoryHub();
  testBus(async () => hub.connect());
});

describe('memory, each endpoint on a thread of its own', () => {
  const hub = new MemoryHub();
  const threads: ThreadedBus[] = [];
  const connect = (): ThreadedBus => {
    const bus = new ThreadedBus(hub);
    threads.push(bus);
    return bus;
  };
  afterEach(() => Promise.all(threads.splice(0).map((bus) => bus.end())));
  testBus(async () => connect());

  test('delivers a message that causally follows a subscription, and queues messages until subscriptions arrive', async () => {
    const here = hub.connect();
    const answer = collect(here, 'answer', 1);
    // This thread has not returned to its event loop since it subscribed.
    const there = connect();
    const question = collect(there, 'question', 1);
    there.publish('answer', bytes('early'));
    here.publish('question', bytes('late'));
    expect(await question).toEqual(['question late']);
    expect(await answer).toEqual(['answer early']);
    await here.close();
  });

  test('delivers all messages of a dead thread before messages that follow its drop', async () => {
    const [dying, here, there] = [connect(), hub.connect(), connect()];
    const received: string[] = [];
    const done = new Promise<void>((resolve) => {
      there.subscribe('>', (payload, on) => {
        received.push(`${on} ${text(payload)}`);
        if (on === 'gone') resolve();
      });
    });
    await there.flush();
    for (let i = 0; i < 100; i++) dying.publish('word', bytes(`${i}`));
    await dying.kill();
    here.publish('gone', bytes(''));
    await done;
    expect(received).toEqual([...Array.from({ length: 100 }, (_, i) => `word ${i}`), 'gone ']);
    // Flush does not wait for a dropped endpoint.
    await here.flush();
    await here.close();
  });

  test('delivers in causal order across publishers', async () => {
    const other = new MemoryHub();
    const [later, first, here] = [other.connect(), other.connect(), other.connect()];
    const received: string[] = [];
    here.subscribe('word.*', (_, on) => received.push(on));
    later.subscribe('go', () => later.publish('word.second', bytes('')));
    await Promise.all([later.flush(), first.flush(), here.flush()]);
    for (let round = 0; round < 3; round++) {
      first.publish('word.first', bytes(''));
      first.publish('go', bytes(''));
      later.drain();
      here.drain();
    }
    expect(received).toEqual(Array.from({ length: 6 }, (_, i) => (i % 2 === 0 ? 'word.first' : 'word.second')));
  });

  test('counts the bytes that an endpoint has not read', async () => {
    const other = new MemoryHub();
    const handle = other.createEndpoint();
    const [a, here] = [other.connect(), new MemoryBus(handle.endpoint)];
    here.subscribe('word', () => {});
    await Promise.all([a.flush(), here.flush()]);
    expect(handle.backlogBytes).toBe(0);
    for (const subject of ['word', 'other', 'word']) a.publish(subject, new Uint8Array(1000));
    expect(Math.floor(handle.backlogBytes / 1000)).toBe(2);
    here.drain();
    expect(handle.backlogBytes).toBe(0);
    await Promise.all([a.close(), here.close()]);
  });

  test('delivers on drain while the thread does not return to its event loop', () => {
    const [a, here] = [connect(), hub.connect()];
    const received: string[] = [];
    here.subscribe('word.*', (payload, on) => received.push(`${on} ${text(payload)}`));
    a.publish('word.1', bytes('a'));
    a.publish('other', bytes('b'));
    a.publish('word.2', bytes('c'));
    expect(received).toEqual([]);
    here.drain();
    expect(received).toEqual(['word.1 a', 'word.2 c']);
  });
});

test('memory records expire after their lifetime', () => {
  const records = new MemoryRecords(100);
  const [bucket, key] = ['snapshots', 'a'] as const;
  records.handle({ kind: 'put', bucket, key, value: bytes('1') }, 1_000);
  records.handle({ kind: 'put', bucket, key: 'b', value: bytes('2') }, 1_040);
  records.handle({ kind: 'put', bucket, key, value: bytes('3') }, 1_050);
  expect(records.handle({ kind: 'read', bucket, key: 'b' }, 1_139)).toMatchObject({ value: bytes('2') });
  expect(records.handle({ kind: 'read', bucket, key: 'b' }, 1_140)).toBeUndefined();
  expect(records.handle({ kind: 'read', bucket, key }, 1_149)).toMatchObject({ value: bytes('3'), revision: 3 });
  expect(records.handle({ kind: 'read', bucket, key }, 1_150)).toBeUndefined();
});

if (!natsInstalled && process.env.CI === undefined) {
  test.skip('NATS: needs nats-server', () => {});
} else {
  describe('nats', () => {
    let server: NatsServer;
    beforeAll(async () => {
      server = await NatsServer.start('-js');
    });
    afterAll(() => server.stop());
    testBus(() => connectNats(server.url, 'contract'));

    test('isolates clusters of different names', async () => {
      const [a, b] = await Promise.all([connectNats(server.url, 'one'), connectNats(server.url, 'other')]);
      const received = collect(b, 'word', 1);
      await b.flush();
      a.publish('word', bytes('a'));
      await a.flush();
      b.publish('word', bytes('b'));
      expect(await received).toEqual(['word b']);
      await a.records.write('key', bytes('a'), undefined);
      expect(await b.records.read('key')).toBeUndefined();
      await Promise.all([a.close(), b.close()]);
    });

    test('restores subscriptions and records after a server restart, and drops messages published meanwhile', async () => {
      const lines: string[] = [];
      const log = (message: string) => lines.push(message.replace(server.url, 'URL'));
      const [a, b] = await Promise.all([connectNats(server.url, 'back', log), connectNats(server.url, 'back')]);
      const revision = await a.records.write('kept', bytes('kept'), undefined);
      const received = collect(b, 'word', 2);
      await b.flush();
      a.publish('word', bytes('before'));
      // The server receives the message, then b does: a killed server loses undelivered messages.
      await a.flush();
      await b.flush();
      await Promise.all([whenConnection(a, false), whenConnection(b, false), server.kill()]);
      a.publish('word', bytes('meanwhile'));
      await expect(a.flush()).rejects.toThrow('down');
      await server.start();
      await Promise.all([whenConnection(a, true), whenConnection(b, true)]);
      expect(await b.records.read('kept')).toEqual({ value: bytes('kept'), revision });
      await b.flush();
      a.publish('word', bytes('after'));
      expect(await received).toEqual(['word before', 'word after']);
      await Promise.all([a.close(), b.close()]);
      expect(lines).toEqual(['Lost NATS at URL: reconnecting', 'NATS at URL is back']);
    });

    test('creates the buckets once when many clients connect at the same time', async () => {
      for (let round = 0; round < 5; round++) {
        const buses = await Promise.all(Array.from({ length: 8 }, () => connectNats(server.url, `new-${round}`)));
        const revisions = await Promise.all(buses.map((bus) => bus.records.write('key', bytes('a'), undefined)));
        expect(revisions.filter((revision) => revision !== undefined)).toHaveLength(1);
        await Promise.all(buses.map((bus) => bus.close()));
      }
    });

    test('creates the buckets again after the server has lost its disk', async () => {
      const lossy = await NatsServer.start('-js');
      const [a, b] = await Promise.all([connectNats(lossy.url, 'lost'), connectNats(lossy.url, 'lost')]);
      const stale = await a.records.write('kept', bytes('kept'), undefined);
      await a.snapshots.put('kept', bytes('kept'));
      await Promise.all([whenConnection(a, false), whenConnection(b, false), lossy.kill()]);
      lossy.loseDisk();
      await lossy.start();
      await Promise.all([whenConnection(a, true), whenConnection(b, true)]);
      expect(await a.records.read('kept')).toBeUndefined();
      expect(await b.snapshots.read('kept')).toBeUndefined();
      expect(await b.records.write('kept', bytes('late'), stale)).toBeUndefined();
      const revisions = await Promise.all([a, b].map((bus) => bus.records.write('kept', bytes('new'), undefined)));
      expect(revisions.filter((revision) => revision !== undefined)).toHaveLength(1);
      // A write detects a deleted bucket.
      const own = await dial({ servers: lossy.url });
      await (await new Kvm(own).open('kvasir-lost-snapshots')).destroy();
      await own.close();
      expect(await a.snapshots.put('kept', bytes('2'))).toBe(1);
      expect(await b.snapshots.read('kept')).toEqual({ value: bytes('2'), revision: 1 });
      await Promise.all([a.close(), b.close()]);
      await lossy.stop();
    });

    test('closes without waiting for the server to return', async () => {
      const dying = await NatsServer.start('-js');
      const bus = await connectNats(dying.url, 'c');
      bus.subscribe('word', () => {});
      await bus.flush();
      dying.hang();
      const closed = bus.close();
      await dying.kill();
      await closed;
      await dying.stop();
    });

    test('reports an unreachable server and a server without JetStream in one line each', async () => {
      await expect(connectNats('nats://127.0.0.1:1', 'c')).rejects.toThrow(
        'Cannot connect to NATS at nats://127.0.0.1:1',
      );
      const plain = await NatsServer.start();
      await expect(connectNats(plain.url, 'c')).rejects.toThrow('is its JetStream on?');
      await plain.stop();
    });

    test('takes the token from the URL, and omits it from errors', async () => {
      const closed = await NatsServer.start('-js', '--auth', 'secret');
      await expect(connectNats(closed.url, 'c')).rejects.toThrow(/Cannot connect/);
      const wrong = connectNats(closed.url.replace('//', '//wrong@'), 'c');
      await expect(wrong).rejects.toThrow(/^(?!.*wrong).*Cannot connect/);
      const bus = await connectNats(closed.url.replace('//', '//secret@'), 'c');
      await bus.close();
      await closed.stop();
    });
  });
}
