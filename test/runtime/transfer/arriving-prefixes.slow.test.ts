// A request that starts ahead of its prefix: the test plays the other instance and sends the pages.
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
import { dyingWorker } from '../../bundled-worker.ts';
import { livePrompt, liveRequest, liveSettings } from '../threads/instances.ts';

const blocks = 6;
const prefix = livePrompt(3, blocks * pageTokens);
const pages = { host: '127.0.0.1', port: 0, token: 'of the test', transport: 'tcp' } as const;

interface ReceivedEvents {
  readonly tokens: number[];
  readonly logprobs: number[];
  cachedTokens: number | undefined;
  end: GenerationEvent['kind'] | undefined;
}

/** An instance, and the source of its prefix, which the test plays. */
class Pair {
  readonly #thread: InstanceThread;
  readonly #bus: MemoryBus;
  readonly #engine: Engine;
  readonly messenger: Messenger;
  readonly received = new Map<string, ReceivedEvents>();
  readonly sentWires: PeerWire[] = [];
  snapshot: InstanceSnapshot | undefined;
  #notify: () => void = () => {};

  constructor(way: 'memory' | 'tcp') {
    const hub = new MemoryHub();
    this.#bus = hub.connect();
    subscribeTo(this.#bus, 'peer', ['*', ownAddress], (wire) => {
      this.sentWires.push(wire);
      this.#notify();
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
        this.#notify();
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
    const received = this.received.get(id) ?? { tokens: [], logprobs: [], cachedTokens: undefined, end: undefined };
    this.received.set(id, received);
    if (event.kind === 'started') received.cachedTokens = event.cachedTokens;
    if (event.kind === 'finished' || event.kind === 'failed') received.end = event.kind;
    if (event.kind !== 'tokens') return;
    received.tokens.push(...event.tokens);
    received.logprobs.push(...(event.logprobs?.logprobs ?? []), ...(event.logprobs?.topLogprobs ?? []));
  }

  /** Waits until the condition holds, within the time-out of the test. */
  async until(holds: () => boolean): Promise<void> {
    while (!holds()) {
      await new Promise<void>((resolve) => {
        this.#notify = resolve;
      });
    }
  }

  /** Submits a request. @param patienceMs undefined: no prefix is fetched */
  submit(request: GenerationRequest, patienceMs?: number): void {
    const fetch = { from: 0, blocks, patienceUs: (patienceMs ?? 0) * 1000, transferUs: 0 };
    this.#thread.send({ kind: 'submit', request, prefix: patienceMs === undefined ? undefined : fetch });
  }

  cancel(id: string): void {
    this.#thread.send({ kind: 'cancel', id });
    this.#thread.interrupt();
  }

  /** Resolves with the receive buffer of the prefix, once the request has started ahead of it. */
  async startedAhead(id: string): Promise<string> {
    const isFetch = (wire: PeerWire) =>
      wire.kind === 'message' && wire.message.kind === 'fetch' && wire.message.id === id;
    await this.until(() => this.sentWires.some(isFetch));
    const fetchWire = this.sentWires.find(isFetch);
    this.#thread.send({ kind: 'peerMessage', from: 0, wire: { kind: 'prefix', id, blocks } });
    await this.until(() => this.received.get(id)?.cachedTokens !== undefined);
    return (fetchWire?.kind === 'message' ? fetchWire.receiveBuffer : undefined) ?? '';
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

describe.skipIf(loadNative() === undefined).each(['memory', 'tcp'] as const)('a prefix in transit over %s', (way) => {
  let pair: Pair;
  beforeAll(async () => {
    pair = new Pair(way);
    await pair.ready();
  });
  afterAll(() => pair.close());

  /** Runs the request alone and ahead of its prefix. Salts make their prefixes distinct. */
  async function both(id: string, patienceMs: number, send: (receiveBuffer: string) => void) {
    const request = { ...liveRequest(id, [...prefix, ...livePrompt(9, 40)], 5), salt: id };
    const alone = { ...request, id: `${id} alone`, salt: `${id} alone` };
    pair.submit(alone);
    await pair.until(() => pair.received.get(alone.id)?.end !== undefined);
    pair.submit(request, patienceMs);
    send(await pair.startedAhead(id));
    return { request, expected: pair.received.get(alone.id) };
  }

  const bits = (received: ReceivedEvents | undefined) => [received?.tokens, received?.logprobs, received?.end];

  it('lets its request start, which computes with each layer as it arrives', async () => {
    const { request, expected } = await both('comes', 60_000, (receiveBuffer) => {
      let layer = 0;
      const next = (): void => {
        pair.send(receiveBuffer, layer, ++layer);
        if (layer < pair.layers) setImmediate(next);
      };
      next();
    });
    await pair.until(() => pair.received.get(request.id)?.end !== undefined);
    expect(bits(pair.received.get(request.id))).toEqual(bits(expected));
    expect(pair.received.get(request.id)?.cachedTokens).toBe(blocks * pageTokens);
    // The prefix is cached from then on.
    const again = { ...request, id: 'again' };
    pair.submit(again);
    await pair.until(() => pair.received.get('again')?.end !== undefined);
    expect(bits(pair.received.get('again'))).toEqual(bits(expected));
    expect(pair.received.get('again')?.cachedTokens).toBeGreaterThanOrEqual(blocks * pageTokens);
    await pair.idle();
  });

  it('that stops half-way is computed with the same bits, and later pages are not written', async () => {
    let receiveBuffer = '';
    const { request, expected } = await both('stops', 200, (to) => {
      receiveBuffer = to;
      pair.send(to, 0, 3);
    });
    await pair.until(() => pair.received.get(request.id)?.end !== undefined);
    pair.send(receiveBuffer, 3, pair.layers);
    expect(bits(pair.received.get(request.id))).toEqual(bits(expected));
    await pair.idle();
    expect(pair.sentWires.some((wire) => wire.kind === 'message' && wire.message.kind === 'cancelPrefix')).toBe(true);
    pair.messenger.stop(receiveBuffer);
  });

  it('is released when its request is cancelled half-way', async () => {
    const { request } = await both('cancelled', 60_000, (receiveBuffer) => pair.send(receiveBuffer, 0, 3));
    pair.cancel(request.id);
    await pair.until(() =>
      pair.sentWires.some(
        (wire) => wire.kind === 'message' && wire.message.kind === 'cancelPrefix' && wire.message.id === request.id,
      ),
    );
    await pair.idle();
    expect(pair.received.get(request.id)?.end).toBeUndefined();
  });
});
