// The load that SGLang pushes: readings that its own publisher sent, readings that are wrong, and polling in their place.
import { readFileSync } from 'node:fs';
import { afterEach, expect, it } from 'vitest';
import type { EngineLoad } from '../../../src/core/fleet/engine-load.ts';
import { ExternalEngine, type ExternalEngineOptions } from '../../../src/runtime/fleet/external-engine.ts';
import { LoadSubscriber, readLoadStat } from '../../../src/runtime/fleet/load-subscriber.ts';
import { encodeMsgpack, type Packed } from '../../../src/runtime/fleet/msgpack.ts';
import { type ZmtpConnection, ZmtpServer } from '../../../src/runtime/fleet/zmtp.ts';
import { FakeEngine } from './fake-engine.ts';

const opened: (() => void)[] = [];
afterEach(() => {
  for (const close of opened.splice(0)) close();
});

const recorded: readonly (readonly string[])[] = JSON.parse(
  readFileSync(new URL('../../data/fleet/sglang-0.5.23.json', import.meta.url), 'utf8'),
).loads;
const frames = recorded.map((message) => message.map((frame) => Buffer.from(frame, 'base64')));

/** Sends messages to the subscriber that has come last. */
class Publisher {
  #server: ZmtpServer | undefined;
  #subscriber: ZmtpConnection | undefined;
  subscriptions = 0;

  async open(): Promise<number> {
    this.#server = await ZmtpServer.listen('tcp://127.0.0.1:0', 'PUB', (subscriber) => ({
      onMessage: ([frame]) => {
        expect(String(frame)).toBe('\u0001load');
        this.#subscriber = subscriber;
        this.subscriptions++;
      },
      onClose: () => {},
    }));
    opened.push(() => this.#server?.close());
    return this.#server.port;
  }

  send(...messages: readonly (readonly Buffer[])[]): void {
    for (const message of messages) this.#subscriber?.send(message);
  }

  cut(): void {
    this.#subscriber?.close();
  }
}

function reading(number: number, stat: Packed): readonly Buffer[] {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(number));
  return [Buffer.from('load'), bytes, encodeMsgpack(stat)];
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

it('reads what the publisher of SGLang sends, and no other values', () => {
  expect(frames.map(([, , payload]) => readLoadStat(payload, undefined))).toEqual([
    { running: 0, waiting: 0, usage: 0 },
    { running: 3, waiting: 2, usage: 0.25 },
    { running: 300, waiting: 0, usage: 1 },
    { running: 0, waiting: 0, usage: 0 },
  ]);
  expect(readLoadStat(frames[3][2], 48).usage).toBe(0.25);
  expect(readLoadStat(encodeMsgpack(['LoadStat', 1, 1, 90, 60, 0, 'a later field']), undefined).usage).toBe(1);
  for (const wrong of [
    ['LoadStat', 1, 1, 1],
    ['LoadStat', -1, 0, 0, 0],
    ['LoadStat', 2n ** 63n, 0, 0, 0],
    ['Load', 1, 1, 1, 1],
    7,
  ])
    expect(() => readLoadStat(encodeMsgpack(wrong), undefined)).toThrow();
});

it('passes over readings that are doubled, late or wrong, and goes on after a reconnection with the first number', async () => {
  const publisher = new Publisher();
  const port = await publisher.open();
  const loads: EngineLoad[] = [];
  const logged: string[] = [];
  const source = { endpoint: `tcp://127.0.0.1:${port}`, topic: 'load' };
  const subscriber = new LoadSubscriber(source, 100, {
    onLoad: (load) => void loads.push(load),
    log: (line) => void logged.push(line),
  });
  opened.push(() => subscriber.close());
  await until(() => publisher.subscriptions === 1);
  const [, , , last] = [...frames.slice(0, 3), reading(9, ['LoadStat', 9, 0, 0, 0])];
  publisher.send(frames[1], frames[1], frames[0], [Buffer.from('load')], reading(7, ['LoadStat']), reading(8, 'x'));
  publisher.send(frames[2], last);
  await until(() => loads.at(-1)?.running === 9);
  expect(loads.map(({ running }) => running)).toEqual([3, 300, 9]);
  expect(logged).toEqual([expect.stringContaining('a reading is invalid')]);
  expect(subscriber.isFresh).toBe(true);
  publisher.cut();
  await until(() => publisher.subscriptions === 2);
  publisher.send(frames[0]);
  await until(() => loads.length === 4);
  expect(logged.at(-1)).toContain('the connection ended');
});

it('polls the load of an engine until it pushes readings, or where the fleet file turns them off', async () => {
  const publisher = new Publisher();
  const fake = await FakeEngine.start({ kind: 'sglang', loadPort: await publisher.open() });
  opened.push(() => void fake.kill());
  const loadsOf = (options: Partial<ExternalEngineOptions>) => {
    const seen = { loads: [] as EngineLoad[], polled: 0 };
    const engine = new ExternalEngine(
      { url: fake.url, ...options },
      {
        ...{ onUp: () => {}, onDown: () => {}, log: () => {} },
        onPolled: () => void seen.polled++,
        onLoad: (_, rank, load) => void (rank === 0 && seen.loads.push(load)),
      },
    );
    opened.push(() => engine.close());
    return seen;
  };
  const pushed = loadsOf({});
  await until(() => publisher.subscriptions === 1);
  publisher.send(frames[2]);
  await until(() => pushed.loads.length === 1);
  await until(() => pushed.polled === 1);
  expect([pushed.loads.map(({ running }) => running), fake.polls]).toEqual([[300], 0]);
  const polled = loadsOf({ load: 'off' });
  await until(() => polled.polled === 1);
  expect(polled.loads).toEqual([{ running: 3, waiting: 2, usage: 0.25 }]);
  expect(publisher.subscriptions).toBe(1);
});
