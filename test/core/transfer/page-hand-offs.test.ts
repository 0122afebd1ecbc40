// Hand-offs whose pages are copied one by one into receive buffers, in any order of events: every row reads the right keys, and no page leaks.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createTokenInstance, type TokenInstance } from '../../../src/core/instance/token-instance.ts';
import type { SparsityConfig } from '../../../src/core/kvcache/sparsity/sparse-plan.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent, PeerMessage } from '../../../src/core/protocol/events.ts';
import type { GenerationEvent, GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { pageDescriptorsOf } from '../../../src/core/transfer/hand-off/page-descriptors.ts';
import { InFlightPages } from '../../../src/runtime/transfer/in-flight-pages.ts';
import { type LayerGroup, pageTokens } from '../../../src/util/step.ts';
import { baseConfig, expectedOutput, promptOf, request, World } from '../instance-world.ts';
import { FakeEngine } from '../scheduler/fake-engine.ts';

const members = 4;
/** The first two prefill, the others decode. */
const decodes = (index: number) => index >= 2;
const receivePages = 60;

interface ReceiveBuffer {
  readonly at: number;
  readonly pages: Int32Array;
  readonly descriptors: {
    readonly from: number;
    readonly step: number;
    readonly page: number;
    readonly place: number;
  }[];
  firstEvents: readonly GenerationEvent[] | undefined;
  closed: boolean;
}

type Wire = { readonly message: PeerMessage; readonly receiveBuffer: ReceiveBuffer | undefined };
type Running = Extract<InstanceEffect, { kind: 'runStep' }>;

class PageWorld {
  readonly instances: readonly TokenInstance[];
  readonly engines: readonly FakeEngine[];
  readonly received = new Map<string, GenerationEvent[]>();
  readonly running = new Map<number, Running>();
  /** Steps that have ended, by instance. */
  readonly ended = Array.from({ length: members }, () => 0);
  /** Messages by pair of instances: in order within a pair, in any order between pairs. */
  readonly wires = new Map<string, { readonly from: number; readonly to: number; readonly queue: Wire[] }>();
  /** Events for each instance, in order. */
  readonly commands = Array.from({ length: members }, (): InstanceEvent[] => []);
  /** Receive buffers by request, at the decode instances. */
  readonly receiveBuffers = new Map<string, ReceiveBuffer>();
  /** Receive buffers by request, at the prefill instances. */
  readonly sending = new Map<string, ReceiveBuffer>();
  /** Pages that streams may still read. */
  readonly inFlight = new InFlightPages({
    pending: (id) => this.sending.get(id)?.descriptors.length ?? 0,
    stop: (id) => void this.sending.get(id)?.descriptors.splice(0),
    unreachable: () => [],
  });
  /** Streams that were halted. */
  halts = 0;
  nowUs = 0;

  readonly groups: readonly LayerGroup[];

  /** @param workers attention workers of the decode instances, which hold sequences whole */
  constructor(
    groups: readonly LayerGroup[],
    pages: number,
    sparsity?: SparsityConfig,
    decodeSparsity = sparsity,
    workers = 0,
  ) {
    this.groups = groups;
    this.instances = Array.from({ length: members }, (_, i) =>
      createTokenInstance({
        ...{ ...baseConfig, groups, pages, sparsity: decodes(i) ? decodeSparsity : sparsity },
        handOff: {
          layerWise: true,
          receiveTokens: 0,
          receivePages: decodes(i) ? receivePages : 0,
          rechecksAdmission: false,
        },
        ...(decodes(i) && workers > 0 && { attentionWorkers: { workers, partition: 'requests' } }),
      }),
    );
    this.engines = this.instances.map(() => new FakeEngine(pages + receivePages * Math.max(1, workers), groups));
  }

  submit(one: GenerationRequest, at: number, decodeAt: number): void {
    this.received.set(one.id, []);
    this.commands[at]?.push({ kind: 'submit', request: one, decodeAt });
  }

  cancel(id: string): void {
    this.received.delete(id);
    for (const commands of this.commands) commands.push({ kind: 'cancel', id });
  }

  /** Runs one possible next event; false if there is none. */
  advance(choice: number, aborts: boolean): boolean {
    const ready = [...this.receiveBuffers.values()].filter(({ at, descriptors: [first] }) => {
      return first !== undefined && at >= 0 && first.step <= (this.ended[first.from] ?? 0);
    });
    const moves = [
      ...[...this.wires.values()].filter(({ queue }) => queue.length > 0).map((wire) => () => this.#receiveWire(wire)),
      ...this.commands.flatMap((commands, at) => (commands.length > 0 ? [() => this.#deliverCommand(at)] : [])),
      ...[...this.running.keys()].map((at) => () => this.#endStep(at, aborts)),
      ...ready.map((receiveBuffer) => () => this.#copy(receiveBuffer)),
    ];
    moves[choice % Math.max(1, moves.length)]?.();
    return moves.length > 0;
  }

  #deliverCommand(at: number): void {
    const event = this.commands[at]?.shift();
    if (event !== undefined) this.deliver(at, event);
  }

  #receiveWire({ from, to, queue }: { from: number; to: number; queue: Wire[] }): void {
    const wire = queue.shift();
    if (wire === undefined) return;
    if (wire.receiveBuffer !== undefined) this.sending.set(wire.message.id, wire.receiveBuffer);
    this.deliver(to, { kind: 'peer', from, message: wire.message });
  }

  #endStep(at: number, aborts: boolean): void {
    const step = this.running.get(at);
    const engine = this.engines[at];
    if (step === undefined || engine === undefined) return;
    this.running.delete(at);
    this.ended[at] = step.step;
    if (aborts && step.plan.sparse === undefined) {
      engine.abort(step.plan, step.plan.tokens.length >> 1);
      this.deliver(at, { kind: 'stepAborted', step: step.step });
    } else {
      this.deliver(at, { kind: 'stepDone', step: step.step, result: engine.run(step.plan) });
    }
  }

  #copy(receiveBuffer: ReceiveBuffer): void {
    const descriptor = receiveBuffer.descriptors.shift();
    if (descriptor === undefined) return;
    expect(receiveBuffer.closed).toBe(false);
    const source = this.engines[descriptor.from];
    if (source !== undefined)
      this.engines[receiveBuffer.at]?.copy(receiveBuffer.pages[descriptor.place] ?? -1, source, descriptor.page);
    this.#reportReceived(receiveBuffer, descriptor.from);
  }

  #reportReceived(receiveBuffer: ReceiveBuffer, from: number): void {
    if (receiveBuffer.closed || receiveBuffer.firstEvents === undefined || receiveBuffer.descriptors.length > 0) return;
    const { firstEvents, at } = receiveBuffer;
    receiveBuffer.firstEvents = undefined;
    const id = [...this.receiveBuffers].find(([, other]) => other === receiveBuffer)?.[0] ?? '';
    this.commands[at]?.push({ kind: 'promptReceived', from, id, firstEvents });
  }

  deliver(at: number, event: InstanceEvent): void {
    this.nowUs += 1_000;
    const instance = this.instances[at];
    if (instance === undefined) return;
    for (const effect of instance.step(this.nowUs, event)) this.#apply(at, instance, effect);
    instance.check();
    for (const [id, { descriptors }] of this.sending)
      if (descriptors.some(({ from }) => from === at)) this.#checkReads(at, id);
  }

  /** Pages that may still be read belong to the request, and no instance computes it again. */
  #checkReads(at: number, id: string): void {
    const instance = this.instances[at];
    const sequence = [...(instance?.requests.sequences() ?? [])].find((each) => each.id === id)?.sequence;
    const computed = new Map<number, number>();
    for (const page of sequence?.table.slots?.ids ?? []) computed.set(page, 0);
    for (const [g, { layers, pageTable }] of (instance?.pools ?? []).entries()) {
      const { first = 0, blocks } = sequence?.table.groups[g] ?? {};
      for (let i = 0; i < (blocks?.length ?? 0) * layers; i++) {
        const block = Math.floor(i / layers);
        computed.set(pageTable[(blocks?.at(block) ?? 0) * layers + (i % layers)] ?? -1, (first + block) * pageTokens);
      }
    }
    const ended = this.ended[at] ?? 0;
    for (const { page, step } of this.sending.get(id)?.descriptors ?? []) {
      const from = computed.get(page);
      if (from === undefined) throw new Error(`Page ${page} may be read for ${id}, but belongs to another request`);
      const end = (sequence?.computed ?? 0) + (step > ended ? (sequence?.planned ?? 0) : 0);
      if (from >= end) throw new Error(`Page ${page} may be read for ${id}, of which only ${end} tokens are computed`);
    }
  }

  #apply(at: number, instance: TokenInstance, effect: InstanceEffect): void {
    switch (effect.kind) {
      case 'emit':
        this.received.get(effect.id)?.push(effect.event);
        break;
      case 'runStep':
        this.running.set(at, effect);
        break;
      case 'send': {
        const key = `${at} to ${effect.to}`;
        const wire = this.wires.get(key) ?? { from: at, to: effect.to, queue: [] };
        const receiveBuffer =
          effect.message.kind === 'reserved' ? this.receiveBuffers.get(effect.message.id) : undefined;
        wire.queue.push({ message: effect.message, receiveBuffer });
        this.wires.set(key, wire);
        break;
      }
      case 'openReceiveBuffer':
        this.receiveBuffers.set(effect.id, {
          at,
          pages: effect.pages,
          descriptors: [],
          firstEvents: undefined,
          closed: false,
        });
        break;
      case 'closeReceiveBuffer': {
        const receiveBuffer = this.receiveBuffers.get(effect.id);
        this.receiveBuffers.delete(effect.id);
        if (receiveBuffer !== undefined) receiveBuffer.closed = true;
        receiveBuffer?.descriptors.splice(0);
        break;
      }
      case 'stream': {
        const receiveBuffer = this.sending.get(effect.id);
        if (receiveBuffer === undefined || receiveBuffer.closed) break;
        const layers = this.groups.flatMap(({ layers: count }, group) =>
          Array.from({ length: count }, (_, index) => ({ group, index })),
        );
        const end = effect.from + effect.tokens;
        const from = this.inFlight.resumeAt(effect.id, effect.from, end);
        if (from === end && effect.firstEvents === undefined) break;
        const part = { ...effect, from, tokens: end - from };
        const descriptors = pageDescriptorsOf(part, { groups: this.groups, layers }, instance.pools);
        for (let i = 0; i < descriptors.length; i += 3)
          receiveBuffer.descriptors.push({
            from: at,
            step: effect.step ?? 0,
            page: descriptors[i + 1] ?? -1,
            place: descriptors[i + 2] ?? -1,
          });
        this.inFlight.add(effect.id, descriptors, end);
        receiveBuffer.firstEvents = effect.firstEvents;
        this.#reportReceived(receiveBuffer, at);
        break;
      }
      case 'haltStream':
        this.halts++;
        this.inFlight.halt(effect.id, effect.from);
        break;
      case 'stopStream':
        this.inFlight.stop(effect.id);
        break;
      case 'fault':
        throw new Error(effect.message);
    }
  }
}

const sparsity: SparsityConfig = {
  ...{ shape: 'uniform', budget: 40, recent: 8, observed: 16, pooling: { kind: 'max', width: 1 }, headReduce: 'max' },
  ...{ compactEvery: 0, keepsFull: true, slotPagesOfState: 1 },
};

/** The output of a request with kept tokens: that of an instance of its own. */
function keptOutput(one: GenerationRequest, groups: readonly LayerGroup[]): readonly number[] {
  const world = new World({ groups, sparsity, pages: 2000 });
  world.submit(one);
  world.finishAll();
  return world.of(one.id).tokens;
}

const sequences = fc.record({
  kind: fc.nat(4),
  length: fc.integer({ min: 1, max: 300 }),
  output: fc.integer({ min: 2, max: 40 }),
  at: fc.nat(1),
  to: fc.nat(1),
});
const moves = fc.array(fc.record({ choice: fc.nat(1_000), aborts: fc.boolean(), cancels: fc.nat(600) }), {
  minLength: 50,
  maxLength: 500,
});

test.each([
  { name: 'one group', groups: [{ layers: 2, window: undefined }], pages: 80 },
  { name: 'at two attention workers', groups: [{ layers: 2, window: undefined }], pages: 120, workers: 2 },
  {
    name: 'with a window',
    groups: [
      { layers: 2, window: undefined },
      { layers: 3, window: 70 },
    ],
    pages: 120,
  },
  {
    name: 'windows alone',
    groups: [
      { layers: 2, window: 40 },
      { layers: 1, window: 100 },
    ],
    pages: 40,
  },
  {
    name: 'with kept tokens and a window',
    groups: [
      { layers: 1, window: 70 },
      { layers: 1, window: undefined },
      { layers: 2, window: undefined, sparse: true },
    ],
    pages: 150,
    sparsity,
  },
])('pages are received in any order of events: $name', ({ groups, pages, sparsity, workers }) => {
  let complete = 0;
  let receivedSteps = 0;
  let halts = 0;
  let selectedAgain = 0;
  fc.assert(
    fc.property(fc.array(sequences, { minLength: 1, maxLength: 9 }), moves, (specs, history) => {
      const world = new PageWorld(groups, pages, sparsity, sparsity, workers);
      const requests = specs.map(({ kind, length, output }, i) =>
        request(`r${i}`, promptOf(kind, length), { maxTokens: output, priority: i % 2 }),
      );
      for (const [i, one] of requests.entries()) world.submit(one, specs[i]?.at ?? 0, 2 + (specs[i]?.to ?? 0));
      for (const { choice, aborts, cancels } of history) {
        const one = requests[cancels];
        if (one !== undefined && world.received.has(one.id)) world.cancel(one.id);
        world.advance(choice, aborts && choice % 3 === 0);
        receivedSteps += Number(world.receiveBuffers.size > 0);
      }
      for (let i = 0; world.advance(i * 7, false); i++) if (i > 50_000) throw new Error('The history does not end');
      halts += world.halts;
      for (const instance of world.instances) {
        const { pages: poolPages, receivePages, running, waiting } = instance.snapshot();
        expect([poolPages.used, running, waiting, receivePages?.free]).toEqual([0, 0, 0, receivePages?.total]);
        if (receivePages !== undefined) selectedAgain += instance.snapshot().sparse?.selections ?? 0;
      }
      for (const one of requests) {
        const events = world.received.get(one.id);
        if (events === undefined) continue;
        const last = events.at(-1);
        // A prompt longer than the receive buffers is declined.
        if (last?.kind === 'failed') expect(last.code).toBe('CONTEXT_TOO_LONG');
        else {
          const tokens = events.flatMap((event) => (event.kind === 'tokens' ? [...event.tokens] : []));
          const expected = sparsity === undefined ? expectedOutput(one).tokens : keptOutput(one, groups);
          expect(tokens, one.id).toEqual(expected);
          complete++;
        }
      }
    }),
    { numRuns: sparsity === undefined ? 60 : 25 },
  );
  expect(complete).toBeGreaterThan(20);
  expect(receivedSteps).toBeGreaterThan(20);
  // Decode instances choose tokens again only of preempted sequences. Kept tokens are sent at once.
  expect(selectedAgain).toBeLessThan(complete / 4);
  if (sparsity === undefined) expect(halts).toBeGreaterThan(0);
});

test('a prompt of which decode rows choose pages is handed off whole', () => {
  const groups = [
    { layers: 1, window: undefined },
    { layers: 2, window: undefined, sparse: true },
  ];
  const world = new PageWorld(groups, 120, { ...sparsity, pages: { topP: 1 }, observed: 1, recent: 0 });
  world.submit(request('a', promptOf(1, 100)), 0, 2);
  for (let i = 0; world.advance(i, false); i++) if (i > 5_000) throw new Error('The history does not end');
  expect(world.received.get('a')?.at(-1)).toMatchObject({ kind: 'finished' });
  expect(world.instances.map((instance) => instance.snapshot().computedPromptTokens)).toEqual([100, 0, 0, 0]);
});

test('an instance with other budgets declines kept tokens', () => {
  const groups = [{ layers: 3, window: undefined, sparse: true }];
  const world = new PageWorld(groups, 120, sparsity, { ...sparsity, compactEvery: 8, budget: 60 });
  world.submit(request('a', promptOf(1, 100)), 0, 2);
  for (let i = 0; world.advance(i, false); i++) if (i > 5_000) throw new Error('The history does not end');
  expect(world.received.get('a')?.at(-1)).toMatchObject({ kind: 'failed', code: 'CONTEXT_TOO_LONG' });
  for (const instance of world.instances) expect(instance.snapshot().pages.used).toBe(0);
});
