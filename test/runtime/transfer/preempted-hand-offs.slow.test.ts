// A prompt that is preempted while its pages are sent, with real steps and native messengers: no page that may still be read is free or reused.
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { createTokenInstance } from '../../../src/core/instance/token-instance.ts';
import { ReceiveLayout } from '../../../src/core/kvcache/receive-pages.ts';
import type { InstanceEvent } from '../../../src/core/protocol/events.ts';
import { pageDescriptorsOf } from '../../../src/core/transfer/hand-off/page-descriptors.ts';
import { Engine } from '../../../src/engine/engine.ts';
import { loadModel } from '../../../src/engine/load-model.ts';
import { NativeMessenger } from '../../../src/kernel/native/messenger.ts';
import { createNativeBackend, loadNative } from '../../../src/kernel/native/native.ts';
import { NativeRemoteMessenger } from '../../../src/kernel/native/remote-messenger.ts';
import { type HandOffEffect, LiveHandOffs, type PeerWire } from '../../../src/runtime/transfer/live-hand-offs.ts';
import type { Messenger } from '../../../src/runtime/transfer/messenger.ts';
import { pageTokens, type Step } from '../../../src/util/step.ts';
import { baseConfig, limits, promptOf, request } from '../../core/instance-world.ts';
import { answerOf, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';

const path = fileURLToPath(new URL('../../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));
const promptTokens = 4 * pageTokens;
/** Blocks for one prompt and half of another. */
const blocks = 6;

/** A messenger whose descriptors stay pending until a stop, as with slow acknowledgements. */
function watching(messenger: Messenger) {
  const pages: number[] = [];
  let stops = 0;
  const watched: Messenger = {
    get counts() {
      return messenger.counts;
    },
    get nextPoolStep() {
      return messenger.nextPoolStep;
    },
    open: (own, layers) => messenger.open(own, layers),
    arrivals: (receiveBuffer, count) => messenger.arrivals(receiveBuffer, count),
    close: (receiveBuffer) => messenger.close(receiveBuffer),
    received: () => messenger.received(),
    unreachable: () => messenger.unreachable(),
    send: (receiveBuffer, step, parcels, last, filling) => {
      for (let at = 1; at < parcels.length; at += 3) pages.push(parcels[at] ?? -1);
      messenger.send(receiveBuffer, step, parcels, last, filling);
    },
    stop: (receiveBuffer) => {
      stops++;
      pages.length = 0;
      messenger.stop(receiveBuffer);
    },
    pending: () => pages.length,
    transportTo: (receiveBuffer) => messenger.transportTo(receiveBuffer),
  };
  return { watched, pages, stops: () => stops };
}

function sending(create: (engine: Engine) => Messenger) {
  const backend = createNativeBackend({ threads: 1 });
  const model = loadModel({ model: path, backend, context: 512 });
  const open = () => new Engine({ model, backend, tokensMax: 64, logitRowsMax: 64, kvBytes: 2 ** 22 });
  const [here, there] = [open(), open()];
  const { groups, pageBytes } = model.kv;
  const watch = watching(create(here));
  const receiver = create(there);
  const wires: PeerWire[] = [];
  const shape = { groups, layers: here.layers };
  const post = (_: number, wire: PeerWire): void => void wires.push(wire);
  const handOffs = new LiveHandOffs({ post, messenger: watch.watched, shape, pageBytes });
  const machine = createTokenInstance({
    ...{ ...baseConfig, groups, limits: { ...limits, tokensMax: 48, logitRowsMax: 32, sequencesMax: 4 } },
    pages: blocks * groups.reduce((sum, { layers }) => sum + layers, 0),
    handOff: { layerWise: true, receiveTokens: 0, receivePages: 0, rechecksAdmission: false },
  });
  const abort = new Int32Array(new SharedArrayBuffer(4));
  let next: { readonly step: number; readonly plan: Step } | undefined;
  let nowUs = 0;
  const owned = (): ReadonlySet<number> => {
    const table = [...machine.requests.sequences()].find(({ id }) => id === 'leaves')?.sequence.table;
    return new Set(
      machine.pools.flatMap(({ layers, pageTable }, g) => {
        const held = table?.groups[g]?.blocks;
        return Array.from({ length: held?.length ?? 0 }, (_, i) => held?.at(i) ?? 0).flatMap((row) => [
          ...pageTable.subarray(row * layers, (row + 1) * layers),
        ]);
      }),
    );
  };
  const feed = (event: InstanceEvent): void => {
    nowUs += 1000;
    for (const effect of machine.step(nowUs, event)) {
      if (effect.kind === 'runStep') next = effect;
      else if (effect.kind === 'fault') throw new Error(effect.message);
      else if (['send', 'stream', 'haltStream', 'stopStream'].includes(effect.kind))
        handOffs.carryOut(effect as HandOffEffect, machine.pools);
    }
    machine.check();
    const own = owned();
    expect(watch.pages.filter((page) => !own.has(page))).toEqual([]);
  };
  /** Runs the step that is planned; false: there is none. */
  const run = (): boolean => {
    const step = next;
    if (step === undefined) return false;
    next = undefined;
    const outcome = here.run(step.plan, abort);
    handOffs.onStepRan(step.step);
    feed(
      outcome.kind === 'done'
        ? { kind: 'stepDone', step: step.step, result: outcome.result }
        : { kind: 'stepAborted', step: step.step },
    );
    return true;
  };
  return { ...{ machine, handOffs, wires, watch, receiver, here, there, shape, abort, feed, run } };
}

const tcp = { host: '127.0.0.1', token: 'a secret', transport: 'tcp' } as const;
const ways = [
  { way: 'thread', create: ({ pool }: Engine): Messenger => new NativeMessenger(pool, () => {}) },
  { way: 'tcp', create: ({ pool }: Engine): Messenger => new NativeRemoteMessenger(pool, tcp, () => {}) },
];

describe.skipIf(loadNative() === undefined)('a prompt that is preempted while it is sent', () => {
  it.each(ways)('is read from its own pages alone, and is received completely: $way', async ({ create }) => {
    const { machine, handOffs, wires, watch, receiver, here, there, shape, abort, feed, run } = sending(create);
    const layout = new ReceiveLayout(shape.groups, promptTokens, pageTokens);
    const receiveBuffer = receiver.open(Int32Array.from({ length: layout.pageCount }, (_, place) => place));
    const onPeerMessage = (kind: 'reserved' | 'received') => {
      const wire = {
        kind: 'message',
        message: { kind, id: 'leaves' },
        receiveBuffer: kind === 'reserved' ? receiveBuffer : undefined,
      };
      for (const event of handOffs.onMessage(1, wire as Parameters<LiveHandOffs['onMessage']>[1])) feed(event);
    };
    feed({ kind: 'submit', request: request('leaves', promptOf(1, promptTokens), { maxTokens: 4 }), decodeAt: 1 });
    onPeerMessage('reserved');
    run();
    Atomics.store(abort, 0, 1);
    run();
    expect(watch.stops()).toBe(1);
    Atomics.store(abort, 0, 0);
    run();
    const first = request('first', promptOf(2, promptTokens), { maxTokens: 1, priority: 1 });
    feed({ kind: 'submit', request: first });
    while (run());
    expect(machine.snapshot().preemptions).toBeGreaterThan(0);
    expect(watch.stops()).toBeGreaterThan(1);
    expect(wires.map(({ kind }) => kind)).not.toContain('firstEvents');
    handOffs.sendFirstEvents();
    expect(wires.map(({ kind }) => kind)).toContain('firstEvents');
    while (receiver.received().length === 0) await new Promise((resolve) => setImmediate(resolve));
    const [leaving] = [...machine.requests.sequences()];
    const table = leaving?.sequence.table ?? expect.unreachable();
    const sent = pageDescriptorsOf(
      { from: 0, tokens: promptTokens, promptTokens, table, range: undefined },
      shape,
      machine.pools,
    );
    for (let at = 0; at < sent.length; at += 3)
      expect(there.readPage(sent[at + 2] ?? -1)).toEqual(here.readPage(sent[at + 1] ?? -1));
    onPeerMessage('received');
    expect(machine.snapshot().pages.used).toBe(0);
    receiver.close(receiveBuffer);
  });
});

describe.skipIf(loadNative() === undefined)('a prompt that is preempted for one that is computed', () => {
  it.each(['memory', 'tcp'] as const)(
    'withdraws its reservation at the decode instance, and reserves again later: %s',
    async (transport) => {
      // Memory for one such prompt and part of another.
      const kvBytes = 80 * 32 * 6 * 2 * 2 * 64 * 2;
      const sizes = { contextTokens: 2048 };
      const prompts = [livePrompt(1, 1900), livePrompt(2, 1900)];
      const alone = liveCluster([sizes]);
      await alone.ready();
      const expected = await Promise.all(prompts.map((prompt, i) => answerOf(alone, liveRequest(`r${i}`, prompt, 20))));
      await alone.close();
      const apart = liveCluster(
        [
          { role: 'prefill', kvBytes, ...sizes },
          { role: 'decode', ...sizes },
        ],
        transport,
      );
      await apart.ready();
      for (let round = 0; round < 3; round++) {
        const salt = `${round}`;
        let begin: () => void = () => {};
        const begun = new Promise<void>((resolve) => {
          begin = resolve;
        });
        const [first, urgent] = prompts.map((prompt, i) => ({
          ...liveRequest(`${i} of ${round}`, prompt, 20),
          ...{ salt, priority: i },
        }));
        const submit: typeof apart.submit = (one, sink) =>
          apart.submit(one, (event) => {
            if (event.kind === 'started') begin();
            sink(event);
          });
        const before = answerOf({ submit }, first);
        await begun;
        const answers = await Promise.all([before, answerOf(apart, urgent)]);
        expect(answers.map(({ tokens, end }) => [tokens, end])).toEqual(
          expected.map(({ tokens, end }) => [tokens, end]),
        );
      }
      await apart.close();
    },
  );
});
