// A request that starts while its prefix is still on its way: the test is the other instance, and sends what it likes.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot } from '../../../src/core/protocol/ports.ts';
import { Engine } from '../../../src/engine/engine.ts';
import { loadModel } from '../../../src/engine/load-model.ts';
import { groupedStep, plainPages } from '../../../src/engine/plain-step.ts';
import { NativeMessenger } from '../../../src/kernel/native/messenger.ts';
import { createNativeBackend, loadNative } from '../../../src/kernel/native/native.ts';
import { NativeRemoteMessenger } from '../../../src/kernel/native/remote-messenger.ts';
import type { MemoryBus } from '../../../src/runtime/bus/memory-bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { InstanceThread } from '../../../src/runtime/threads/instance-thread.ts';
import { ownAddress, subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import type { PeerWire } from '../../../src/runtime/transfer/live-hand-offs.ts';
import type { Messenger } from '../../../src/runtime/transfer/messenger.ts';
import { pageTokens } from '../../../src/util/step.ts';
import { dyingWorker, livePrompt, liveRequest, liveSettings } from '../threads/instances.ts';

const blocks = 6;
const prefix = livePrompt(3, blocks * pageTokens);
const pages = { host: '127.0.0.1', port: 0, token: 'of the test', transport: 'tcp' } as const;

interface Heard {
  readonly tokens: number[];
  readonly logprobs: number[];
  cachedTokens: number | undefined;
  end: GenerationEvent['kind'] | undefined;
}

/** The instance, and the one that it fetches from, which is the test. */
class Pair {
  readonly #thread: InstanceThread;
  readonly #bus: MemoryBus;
  readonly #engine: Engine;
  readonly messenger: Messenger;
  readonly heard = new Map<string, Heard>();
  readonly said: PeerWire[] = [];
  snapshot: InstanceSnapshot | undefined;
  #stir: () => void = () => {};

  constructor(way: 'memory' | 'tcp') {
    const hub = new MemoryHub();
    this.#bus = hub.connect();
    subscribeTo(this.#bus, 'peer', ['*', ownAddress], (wire) => {
      this.said.push(wire);
      this.#stir();
    });
    const data = {
      ...{
        settings: { ...liveSettings, instances: 1 },
        incarnation: 1,
        receivesPrompts: false,
        peers: 'threads' as const,
        address: ownAddress,
      },
      role: 'mixed' as const,
      ...{
        pages: way === 'tcp' ? pages : undefined,
        traces: false,
        hashKey: Uint32Array.of(1, 2, 3, 4),
        loaded: undefined,
      },
    } as const;
    this.#thread = new InstanceThread({
      ...{ entry: dyingWorker, hub, bus: this.#bus, data, log: () => {} },
      onOutputs: ({ events, snapshot }) => {
        this.snapshot = snapshot;
        for (const [id, event] of events) this.#hear(id, event);
        this.#stir();
      },
    });
    const backend = createNativeBackend({ threads: 1 });
    const model = loadModel({ model: liveSettings.model ?? '', backend, context: 512 });
    this.#engine = new Engine({ model, backend, tokensMax: 512, logitRowsMax: 1, kvBytes: 2 ** 22 });
    const { pool } = this.#engine;
    this.messenger =
      way === 'tcp' ? new NativeRemoteMessenger(pool, pages, () => {}) : new NativeMessenger(pool, () => {});
    const of = plainPages(blocks, model.kv.groups);
    const ids = Array.from({ length: blocks }, (_, i) => i);
    const step = groupedStep([{ tokens: prefix, start: 0, blocks: ids, logits: 'none' }], of);
    expect(this.#engine.run(step, new Int32Array(1)).kind).toBe('done');
  }

  async ready(): Promise<void> {
    await this.#thread.ready;
  }

  #hear(id: string, event: GenerationEvent): void {
    const heard = this.heard.get(id) ?? { tokens: [], logprobs: [], cachedTokens: undefined, end: undefined };
    this.heard.set(id, heard);
    if (event.kind === 'started') heard.cachedTokens = event.cachedTokens;
    if (event.kind === 'finished' || event.kind === 'failed') heard.end = event.kind;
    if (event.kind !== 'tokens') return;
    heard.tokens.push(...event.tokens);
    heard.logprobs.push(...(event.logprobs?.logprobs ?? []), ...(event.logprobs?.topLogprobs ?? []));
  }

  /** The test's own time-out bounds it. */
  async until(holds: () => boolean): Promise<void> {
    while (!holds()) {
      await new Promise<void>((resolve) => {
        this.#stir = resolve;
      });
    }
  }

  /** With `patienceMs` its prefix is fetched. */
  submit(request: GenerationRequest, patienceMs?: number): void {
    const fetch = { from: 0, blocks, patienceUs: (patienceMs ?? 0) * 1000, transferUs: 0 };
    this.#thread.send({ kind: 'submit', request, prefix: patienceMs === undefined ? undefined : fetch });
  }

  cancel(id: string): void {
    this.#thread.send({ kind: 'cancel', id });
    this.#thread.interrupt();
  }

  /** Resolves with where the prefix is to land, once the request has started behind nothing but a promise. */
  async promised(id: string): Promise<string> {
    const asks = (wire: PeerWire) => wire.kind === 'message' && wire.message.kind === 'fetch' && wire.message.id === id;
    await this.until(() => this.said.some(asks));
    const asked = this.said.find(asks);
    this.#thread.send({ kind: 'peerMessage', from: 0, wire: { kind: 'prefix', id, blocks } });
    await this.until(() => this.heard.get(id)?.cachedTokens !== undefined);
    return (asked?.kind === 'message' ? asked.receiveBuffer : undefined) ?? '';
  }

  /** Layers `from..to` of all blocks. */
  send(receiveBuffer: string, from: number, to: number): void {
    const layers = this.#engine.layers.length;
    const parcels: number[] = [];
    for (let layer = from; layer < to; layer++)
      for (let block = 0; block < blocks; block++) parcels.push(layer, block * layers + layer, block * layers + layer);
    this.messenger.send(receiveBuffer, 0, Int32Array.from(parcels), to === layers);
  }

  get layers(): number {
    return this.#engine.layers.length;
  }

  async idle(): Promise<void> {
    await this.until(() => this.snapshot?.pages.used === 0 && this.snapshot.running + this.snapshot.waiting === 0);
  }

  async close(): Promise<void> {
    await this.#thread.close();
    await this.#bus.close();
  }
}

describe.skipIf(loadNative() === undefined).each(['memory', 'tcp'] as const)('a prefix on its way over %s', (way) => {
  let pair: Pair;
  beforeAll(async () => {
    pair = new Pair(way);
    await pair.ready();
  });
  afterAll(() => pair.close());

  /** Each has a prompt with a prefix that no instance has: the first block differs by its salt. */
  async function both(id: string, patienceMs: number, send: (receiveBuffer: string) => void) {
    const request = { ...liveRequest(id, [...prefix, ...livePrompt(9, 40)], 5), salt: id };
    const alone = { ...request, id: `${id} alone`, salt: `${id} alone` };
    pair.submit(alone);
    await pair.until(() => pair.heard.get(alone.id)?.end !== undefined);
    pair.submit(request, patienceMs);
    send(await pair.promised(id));
    return { request, expected: pair.heard.get(alone.id) };
  }

  const bits = (heard: Heard | undefined) => [heard?.tokens, heard?.logprobs, heard?.end];

  it('lets its request start, and each layer as it comes is what is computed with', async () => {
    const { request, expected } = await both('comes', 60_000, (receiveBuffer) => {
      let layer = 0;
      const next = (): void => {
        pair.send(receiveBuffer, layer, ++layer);
        if (layer < pair.layers) setImmediate(next);
      };
      next();
    });
    await pair.until(() => pair.heard.get(request.id)?.end !== undefined);
    expect(bits(pair.heard.get(request.id))).toEqual(bits(expected));
    expect(pair.heard.get(request.id)?.cachedTokens).toBe(blocks * pageTokens);
    // It is cache from then on.
    const again = { ...request, id: 'again' };
    pair.submit(again);
    await pair.until(() => pair.heard.get('again')?.end !== undefined);
    expect(bits(pair.heard.get('again'))).toEqual(bits(expected));
    expect(pair.heard.get('again')?.cachedTokens).toBeGreaterThanOrEqual(blocks * pageTokens);
    await pair.idle();
  });

  it('that stops half-way is computed, with the same bits, and what comes later is written nowhere', async () => {
    let receiveBuffer = '';
    const { request, expected } = await both('stops', 200, (to) => {
      receiveBuffer = to;
      pair.send(to, 0, 3);
    });
    await pair.until(() => pair.heard.get(request.id)?.end !== undefined);
    pair.send(receiveBuffer, 3, pair.layers);
    expect(bits(pair.heard.get(request.id))).toEqual(bits(expected));
    await pair.idle();
    expect(pair.said.some((wire) => wire.kind === 'message' && wire.message.kind === 'cancelPrefix')).toBe(true);
    pair.messenger.stop(receiveBuffer);
  });

  it('is let go of when its request is cancelled half-way', async () => {
    const { request } = await both('cancelled', 60_000, (receiveBuffer) => pair.send(receiveBuffer, 0, 3));
    pair.cancel(request.id);
    await pair.until(() =>
      pair.said.some(
        (wire) => wire.kind === 'message' && wire.message.kind === 'cancelPrefix' && wire.message.id === request.id,
      ),
    );
    await pair.idle();
    expect(pair.heard.get(request.id)?.end).toBeUndefined();
  });
});
