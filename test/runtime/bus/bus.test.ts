// The contract of a bus, held by every kind of it; and what only NATS can show: a server that dies and comes back.
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

/** Of a snapshot, in one record. */
const partBytes = 256 * 1024;
const bytes = (text: string) => new TextEncoder().encode(text);
const text = (value: Uint8Array) => new TextDecoder().decode(value);

/** Resolves with the first `count` messages heard. */
function hear(bus: Bus, subject: string, count: number): Promise<readonly string[]> {
  return new Promise((resolve) => {
    const heard: string[] = [];
    const stop = bus.subscribe(subject, (payload, on) => {
      heard.push(`${on} ${text(payload)}`);
      if (heard.length < count) return;
      stop();
      resolve(heard);
    });
  });
}

function whenUp(bus: Bus, wanted: boolean): Promise<void> {
  return new Promise((resolve) => {
    const stop = bus.watch((up) => {
      if (up === wanted) queueMicrotask(() => resolve(stop()));
    });
  });
}

function testBus(connect: () => Promise<Bus>): void {
  test('messages reach those who listen, in order, by words and wildcards', async () => {
    const [a, b] = await Promise.all([connect(), connect()]);
    const exact = hear(b, 'beat.one', 2);
    const word = hear(b, 'beat.*', 3);
    const all = hear(b, 'beat.>', 4);
    const own = hear(a, 'beat.one', 2);
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

  test('who stopped listening hears nothing, and payloads are copies', async () => {
    const bus = await connect();
    const heard: string[] = [];
    const stop = bus.subscribe('copy', (payload) => heard.push(text(payload)));
    const payload = bytes('before');
    const end = hear(bus, 'end', 1);
    await bus.flush();
    bus.publish('copy', payload);
    const first = hear(bus, 'first', 1);
    await bus.flush();
    payload.fill(0);
    bus.publish('first', bytes(''));
    await first;
    stop();
    bus.publish('copy', bytes('after'));
    bus.publish('end', bytes(''));
    await end;
    expect(heard).toEqual(['before']);
    await bus.close();
  });

  test('a record is written by whoever knows its revision', async () => {
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

  test('of many who write at once one wins', async () => {
    const buses = await Promise.all([connect(), connect(), connect()]);
    const revisions = await Promise.all(buses.map((bus) => bus.records.write('race', bytes('x'), undefined)));
    expect(revisions.filter((revision) => revision !== undefined)).toHaveLength(1);
    await Promise.all(buses.map((bus) => bus.close()));
  });

  test('a record is removed by whoever knows its revision, and may come again', async () => {
    const bus = await connect();
    const first = await bus.records.write('gone', bytes('1'), undefined);
    if (first === undefined) throw new Error('was there');
    expect(await bus.records.remove('gone', first + 1_000)).toBe(false);
    expect(await bus.records.remove('gone', first)).toBe(true);
    expect(await bus.records.read('gone')).toBeUndefined();
    expect(await bus.records.remove('gone', first)).toBe(false);
    expect(await bus.records.write('gone', bytes('2'), first)).toBeUndefined();
    expect(await bus.records.write('gone', bytes('3'), undefined)).toBeGreaterThan(first);
    await bus.close();
  });

  test('snapshots lie apart from records, are written whatever is there, and are as large as parts of one are', async () => {
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

  test('bad subjects are refused by name', async () => {
    const bus = await connect();
    for (const subject of ['', 'a..b', 'a b', 'a.', '>.a', 'ä', 'x'.repeat(201)])
      expect(() => bus.subscribe(subject, () => {})).toThrow('Cannot use the subject');
    for (const subject of ['a.*', 'a.>']) expect(() => bus.publish(subject, bytes(''))).toThrow(subject);
    await expect(async () => bus.records.read('a.*')).rejects.toThrow('Cannot use the subject');
    await bus.close();
  });

  test('a closed bus says so, and hears nothing', async () => {
    const bus = await connect();
    const states: boolean[] = [];
    bus.watch((up) => states.push(up));
    const closed = Promise.all([bus.close(), bus.close()]);
    const speak = (): void => {
      bus.publish('late', bytes(''));
      bus.subscribe('late', () => {})();
    };
    // Timers do not know that it closes.
    speak();
    await closed;
    speak();
    await expect(bus.flush()).rejects.toThrow();
    expect(states).toEqual([true, false]);
  });
}

describe('memory, ends on one thread', () => {
  const hub = new MemoryHub();
  testBus(async () => hub.connect());
});

describe('memory, each end on a thread of its own', () => {
  const hub = new MemoryHub();
  const threads: ThreadedBus[] = [];
  const connect = (): ThreadedBus => {
    const bus = new ThreadedBus(hub);
    threads.push(bus);
    return bus;
  };
  afterEach(() => Promise.all(threads.splice(0).map((bus) => bus.end())));
  testBus(async () => connect());

  test('whoever knows that an end listens reaches it, and is heard by those who have not noticed it yet', async () => {
    const here = hub.connect();
    const answer = hear(here, 'answer', 1);
    // This thread has not returned to its event loop since.
    const there = connect();
    const question = hear(there, 'question', 1);
    there.publish('answer', bytes('early'));
    here.publish('question', bytes('late'));
    expect(await question).toEqual(['question late']);
    expect(await answer).toEqual(['answer early']);
    await here.close();
  });

  test('the last words of a thread that dies are heard before those who know of its end speak', async () => {
    const [dying, here, there] = [connect(), hub.connect(), connect()];
    const heard: string[] = [];
    const told = new Promise<void>((resolve) => {
      there.subscribe('>', (payload, on) => {
        heard.push(`${on} ${text(payload)}`);
        if (on === 'gone') resolve();
      });
    });
    await there.flush();
    for (let i = 0; i < 100; i++) dying.publish('word', bytes(`${i}`));
    await dying.die();
    here.publish('gone', bytes(''));
    await told;
    expect(heard).toEqual([...Array.from({ length: 100 }, (_, i) => `word ${i}`), 'gone ']);
    // Who asks whether all have heard does not wait for the dead.
    await here.flush();
    await here.close();
  });

  test('what is said after something was heard is heard after that, whoever said it', async () => {
    const other = new MemoryHub();
    const [later, first, here] = [other.connect(), other.connect(), other.connect()];
    const heard: string[] = [];
    here.subscribe('word.*', (_, on) => heard.push(on));
    later.subscribe('go', () => later.publish('word.second', bytes('')));
    await Promise.all([later.flush(), first.flush(), here.flush()]);
    for (let round = 0; round < 3; round++) {
      first.publish('word.first', bytes(''));
      first.publish('go', bytes(''));
      later.drain();
      here.drain();
    }
    expect(heard).toEqual(Array.from({ length: 6 }, (_, i) => (i % 2 === 0 ? 'word.first' : 'word.second')));
  });

  test('what an end has not read is counted', async () => {
    const other = new MemoryHub();
    const dealt = other.seat();
    const [a, here] = [other.connect(), new MemoryBus(dealt.seat)];
    here.subscribe('word', () => {});
    await Promise.all([a.flush(), here.flush()]);
    expect(dealt.backlogBytes).toBe(0);
    for (const subject of ['word', 'other', 'word']) a.publish(subject, new Uint8Array(1000));
    expect(Math.floor(dealt.backlogBytes / 1000)).toBe(2);
    here.drain();
    expect(dealt.backlogBytes).toBe(0);
    await Promise.all([a.close(), here.close()]);
  });

  test('a thread that does not return to its event loop hears when it looks', () => {
    const [a, here] = [connect(), hub.connect()];
    const heard: string[] = [];
    here.subscribe('word.*', (payload, on) => heard.push(`${on} ${text(payload)}`));
    a.publish('word.1', bytes('a'));
    a.publish('other', bytes('b'));
    a.publish('word.2', bytes('c'));
    expect(heard).toEqual([]);
    here.drain();
    expect(heard).toEqual(['word.1 a', 'word.2 c']);
  });
});

test('in memory, what is older than it is kept for is forgotten', () => {
  const records = new MemoryRecords(100);
  const [bucket, key] = ['snapshots', 'a'] as const;
  records.answer({ kind: 'put', bucket, key, value: bytes('1') }, 1_000);
  records.answer({ kind: 'put', bucket, key: 'b', value: bytes('2') }, 1_040);
  records.answer({ kind: 'put', bucket, key, value: bytes('3') }, 1_050);
  expect(records.answer({ kind: 'read', bucket, key: 'b' }, 1_139)).toMatchObject({ value: bytes('2') });
  expect(records.answer({ kind: 'read', bucket, key: 'b' }, 1_140)).toBeUndefined();
  expect(records.answer({ kind: 'read', bucket, key }, 1_149)).toMatchObject({ value: bytes('3'), revision: 3 });
  expect(records.answer({ kind: 'read', bucket, key }, 1_150)).toBeUndefined();
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

    test('clusters do not hear each other', async () => {
      const [a, b] = await Promise.all([connectNats(server.url, 'one'), connectNats(server.url, 'other')]);
      const heard = hear(b, 'word', 1);
      await b.flush();
      a.publish('word', bytes('a'));
      await a.flush();
      b.publish('word', bytes('b'));
      expect(await heard).toEqual(['word b']);
      await a.records.write('key', bytes('a'), undefined);
      expect(await b.records.read('key')).toBeUndefined();
      await Promise.all([a.close(), b.close()]);
    });

    test('a server that was killed comes back: subscriptions and records are there, nothing said meanwhile is heard', async () => {
      const said: string[] = [];
      const log = (message: string) => said.push(message.replace(server.url, 'URL'));
      const [a, b] = await Promise.all([connectNats(server.url, 'back', log), connectNats(server.url, 'back')]);
      const revision = await a.records.write('kept', bytes('kept'), undefined);
      const heard = hear(b, 'word', 2);
      await b.flush();
      a.publish('word', bytes('before'));
      // The server has it, then b has: what the server has not passed on dies with it.
      await a.flush();
      await b.flush();
      await Promise.all([whenUp(a, false), whenUp(b, false), server.kill()]);
      a.publish('word', bytes('meanwhile'));
      await expect(a.flush()).rejects.toThrow('down');
      await server.start();
      await Promise.all([whenUp(a, true), whenUp(b, true)]);
      expect(await b.records.read('kept')).toEqual({ value: bytes('kept'), revision });
      await b.flush();
      a.publish('word', bytes('after'));
      expect(await heard).toEqual(['word before', 'word after']);
      await Promise.all([a.close(), b.close()]);
      expect(said).toEqual(['Lost NATS at URL: trying again until it is back', 'NATS at URL is back']);
    });

    test('a server that comes back without its disk keeps records and snapshots again', async () => {
      const lossy = await NatsServer.start('-js');
      const [a, b] = await Promise.all([connectNats(lossy.url, 'lost'), connectNats(lossy.url, 'lost')]);
      const stale = await a.records.write('kept', bytes('kept'), undefined);
      await a.snapshots.put('kept', bytes('kept'));
      await Promise.all([whenUp(a, false), whenUp(b, false), lossy.kill()]);
      lossy.loseDisk();
      await lossy.start();
      await Promise.all([whenUp(a, true), whenUp(b, true)]);
      expect(await a.records.read('kept')).toBeUndefined();
      expect(await b.snapshots.read('kept')).toBeUndefined();
      expect(await b.records.write('kept', bytes('late'), stale)).toBeUndefined();
      const revisions = await Promise.all([a, b].map((bus) => bus.records.write('kept', bytes('new'), undefined)));
      expect(revisions.filter((revision) => revision !== undefined)).toHaveLength(1);
      // Of a bucket that somebody has deleted, those who write notice.
      const own = await dial({ servers: lossy.url });
      await (await new Kvm(own).open('kvasir-lost-snapshots')).destroy();
      await own.close();
      expect(await a.snapshots.put('kept', bytes('2'))).toBe(1);
      expect(await b.snapshots.read('kept')).toEqual({ value: bytes('2'), revision: 1 });
      await Promise.all([a.close(), b.close()]);
      await lossy.stop();
    });

    test('who closes while the server goes away does not wait until it is back', async () => {
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

    test('what cannot be reached, and a server without records, are one clear line', async () => {
      await expect(connectNats('nats://127.0.0.1:1', 'c')).rejects.toThrow(
        'Cannot connect to NATS at nats://127.0.0.1:1',
      );
      const plain = await NatsServer.start();
      await expect(connectNats(plain.url, 'c')).rejects.toThrow('is its JetStream on?');
      await plain.stop();
    });

    test('a server that wants a token takes it from the address, and errors do not tell it', async () => {
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
