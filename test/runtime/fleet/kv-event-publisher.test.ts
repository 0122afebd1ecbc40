// KV events that this server publishes, read by its own subscriber: gaps, slow subscribers, and a server as an engine.
import { connect } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { EngineBlocks } from '../../../src/core/fleet/engine-blocks.ts';
import { rootDigest } from '../../../src/core/kvcache/block-hash.ts';
import { PrefixIndex } from '../../../src/core/kvcache/events/prefix-index.ts';
import { listen } from '../../../src/gateway/http/server.ts';
import { FleetCluster } from '../../../src/runtime/fleet/fleet-cluster.ts';
import { type KvEventLimits, KvEventPublisher } from '../../../src/runtime/fleet/kv-event-publisher.ts';
import { KvEventSubscriber } from '../../../src/runtime/fleet/kv-event-subscriber.ts';
import { subscription, ZmtpConnection } from '../../../src/runtime/fleet/zmtp.ts';
import { digestWords } from '../../../src/util/blake2s.ts';
import { pageTokens } from '../../../src/util/step.ts';
import { request } from '../../core/instance-world.ts';
import { byteTokenizer } from '../../gateway/openai/byte-tokenizer.ts';
import { ScriptedPort } from '../../gateway/scripted-port.ts';
import { gatewayOptions } from '../../gateway/world.ts';
import { admitAll } from '../threads/instances.ts';
import { FakeEngine, nextToken } from './fake-engine.ts';

const opened: { close(): unknown }[] = [];
afterEach(async () => {
  await Promise.all(opened.splice(0).map((each) => each.close()));
});

const root = { modelFingerprint: '', weightForm: '', inputForm: '', kvType: '', rope: '' };
const hashKey = Uint32Array.of(1, 2, 3, 4);
const chainRoot = rootDigest(root, '', hashKey);

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

async function publisherOf(limits: KvEventLimits | undefined, topic: string): Promise<KvEventPublisher> {
  const [endpoint, replay] = ['tcp://127.0.0.1:0', 'tcp://127.0.0.1:0'];
  const publisher = await KvEventPublisher.open({ endpoint, replay, topic }, limits);
  opened.push(publisher);
  return publisher;
}

function subscribe(publisher: KvEventPublisher) {
  const blocks = new EngineBlocks({ root, hashKey, incarnation: 1 });
  let resets = 0;
  const subscriber = new KvEventSubscriber(publisher.source, {
    apply: ({ events }) => void blocks.apply(events),
    reset: () => {
      resets++;
      blocks.clear();
    },
    ...{ adopt: () => {}, log: () => {} },
  });
  opened.push(subscriber);
  return { blocks, resets: () => resets };
}

/** Stores the blocks of prompts at one instance. */
function storeOf({ blocks }: KvEventPublisher) {
  const index = new PrefixIndex({ instances: 1, blocks: 16, remembered: 16, listener: blocks });
  let stored = 0;
  const store = (count: number): void => {
    const kind = ++stored;
    const prompt = Int32Array.from({ length: count * pageTokens }, (_, i) => kind * 100_000 + i);
    blocks.begun(`${kind}`, chainRoot, '', prompt);
    const engine = new EngineBlocks({ root, hashKey, incarnation: 1 });
    const hashes = Array.from({ length: count }, (_, i) => i);
    engine.apply([
      { kind: 'stored', hashes, parent: undefined, tokens: prompt, blockTokens: pageTokens, medium: 'device' },
    ]);
    const { words } = engine.snapshot();
    const changes = { changes: words.length / digestWords, words, stored: new Uint8Array(count).fill(1) };
    index.apply(0, { incarnation: 1, number: kind, ...changes });
  };
  return { store, lose: () => index.removeInstance(0) };
}

it('replays what a slow subscriber has missed, and what passed before a subscription', async () => {
  const limits = { keptBatches: 1000, keptBytes: 2 ** 26, queuedBytes: 2 ** 22 };
  // Every batch has the topic: few of them fill the sockets.
  const publisher = await publisherOf(limits, 'kv@'.padEnd(2 ** 19, 'x'));
  const { store, lose } = storeOf(publisher);
  store(3);
  const early = subscribe(publisher);
  await until(() => early.blocks.size === 3 && publisher.subscribers === 1);
  const socket = connect(Number(publisher.source.endpoint.split(':').at(-1)), '127.0.0.1');
  const numbers: number[] = [];
  const slow = new ZmtpConnection(socket, 'SUB', {
    onReady: () => slow.send(subscription('kv@')),
    onMessage: ([, number]) => void numbers.push(Number(number.readBigUInt64BE())),
    onClose: () => {},
  });
  opened.push(slow);
  await until(() => publisher.subscribers === 2);
  socket.pause();
  while (publisher.missed === 0) {
    const before = publisher.blocks.size;
    store(1);
    await until(() => publisher.blocks.size > before && early.blocks.size === publisher.blocks.size);
  }
  const published = publisher.blocks.size;
  socket.resume();
  await until(() => {
    store(1);
    return (numbers.at(-1) ?? 0) > published;
  });
  expect(numbers.some((number, i) => i > 0 && number > numbers[i - 1] + 1)).toBe(true);
  const late = subscribe(publisher);
  await until(() => [early, late].every(({ blocks }) => blocks.size === publisher.blocks.size));
  lose();
  await until(() => [early, late].every(({ blocks }) => blocks.size === 0));
  expect([early, late].map(({ resets }) => resets())).toEqual([0, 0]);
});

it('lets a subscriber learn anew what the replay does not have any more', async () => {
  const publisher = await publisherOf({ keptBatches: 2, keptBytes: 2 ** 26, queuedBytes: 2 ** 18 }, '');
  const { store } = storeOf(publisher);
  for (let i = 0; i < 5; i++) {
    store(2);
    await until(() => publisher.blocks.size === 2 * (i + 1));
  }
  const late = subscribe(publisher);
  await until(() => late.blocks.size === 4);
  expect(late.resets()).toBe(1);
});

it('makes a server an engine of another one, whose index has the blocks of the first', async () => {
  const engine = await FakeEngine.start({ blockTokens: 32 });
  opened.push({ close: () => engine.kill() });
  const publisher = await publisherOf(undefined, 'kv@here');
  const inner = await fleetOf(engine.url, publisher);
  const { endpoint, replay, topic } = publisher.source;
  const options = gatewayOptions(new ScriptedPort(() => []));
  const tokenizer = { ...byteTokenizer, decodeBytes: () => Uint8Array.of(97) };
  const server = await listen(
    {
      ...{ ...options, port: inner, cluster: inner, bodyBytesMax: 1e6 },
      model: { ...options.model, id: 'fake', contextTokens: 4096, vocabSize: 100_000, tokenizer },
      kvEventSources: { 0: { publisher: 'zmq', endpoint, replay_endpoint: replay, topic } },
    },
    '127.0.0.1',
    0,
  );
  opened.push({ close: () => server.drain({ waitMs: 0, timeoutMs: 0 }) });
  const outer = await fleetOf(`http://127.0.0.1:${server.port}`);
  expect(outer.model).toBe('fake');
  const prompt = Array.from({ length: 150 }, (_, i) => 5000 + i);
  const expected = [...prompt];
  for (let i = 0; i < 40; i++) expected.push(nextToken(expected));
  for (const cached of [0, 128]) {
    const { tokens, cachedTokens } = await run(outer, prompt);
    expect([tokens, cachedTokens]).toEqual([expected.slice(150), cached]);
    // All full blocks of prompt and output.
    await until(() => outer.instances()[0].pages.cached === 5);
  }
  expect(inner.instances()[0].pages.cached).toBe(publisher.blocks.size);
  engine.clear();
  await until(() => outer.instances()[0].pages.cached === 0);
});

async function fleetOf(url: string, publisher?: KvEventPublisher): Promise<FleetCluster> {
  const cluster = new FleetCluster({
    ...{ engines: [{ url }], admission: admitAll, queueMax: 64 },
    ...{ kvEvents: publisher?.blocks, log: () => {} },
  });
  opened.push(cluster);
  await cluster.settled();
  return cluster;
}

function run(cluster: FleetCluster, prompt: readonly number[]): Promise<{ tokens: number[]; cachedTokens: number }> {
  return new Promise((resolve, reject) => {
    const tokens: number[] = [];
    let cachedTokens = 0;
    cluster.submit({ ...request('a', prompt), maxTokens: 40 }, (event) => {
      if (event.kind === 'tokens') tokens.push(...event.tokens);
      if (event.kind === 'started') cachedTokens = event.cachedTokens;
      if (event.kind === 'finished') resolve({ tokens, cachedTokens });
      if (event.kind === 'failed') reject(new Error(event.message));
    });
  });
}
