// The simulator's network behind the interface of messengers: pages are copied when the network has sent them, in
// simulated time.
import type { Messenger, ReceiveBufferHandle } from '../../src/runtime/transfer/messenger.ts';
import { Network } from '../../src/sim/network/network.ts';
import type { MessengerEnd, PagePool } from './messenger.ts';

const layers = 6;
const pages = 64;
const pageValues = 1024;
const pageBytes = pageValues * Float32Array.BYTES_PER_ELEMENT;
const stepUs = 1000;
/** Fast enough for several pages during a step. */
const nic = { bytesPerSecond: 20e6, us: 10 };
/** Layer, page, slot. */
const descriptorWords = 3;

/** The pages of one call of `send`. */
interface Sent {
  readonly from: number;
  readonly descriptors: Int32Array;
  readonly last: boolean;
  /** The step that computes them; 0: computed before. */
  readonly step: number;
  readonly name: string;
}

interface SimulatedBuffer {
  readonly at: number;
  readonly pages: Int32Array;
  /** In order; the first entry is in transit, unless its step has not run. */
  readonly queue: Sent[];
}

class SimulatedWorld {
  readonly network = new Network({ nics: [nic, nic], linkBytesPerSecond: undefined });
  readonly buffers = new Map<ReceiveBufferHandle, SimulatedBuffer>();
  readonly complete: ReceiveBufferHandle[] = [];
  readonly memory = [0, 1].map(() => Array.from({ length: pages }, () => new Float32Array(pageValues)));
  readonly counts = [0, 1].map(() => ({ pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0 }));
  /** The number of the next step of each end. */
  readonly steps = [1, 1];
  nowUs = 0;
  sends = 0;

  begin(handle: ReceiveBufferHandle, untilUs = this.nowUs): void {
    const buffer = this.buffers.get(handle);
    const sent = buffer?.queue[0];
    if (buffer === undefined || sent === undefined || sent.step >= (this.steps[sent.from] ?? 0)) return;
    const bytes = (sent.descriptors.length / descriptorWords) * pageBytes;
    const { from, name } = sent;
    this.network.stream(this.nowUs, { from, to: buffer.at, name, kind: 'handoff' }, { bytes, untilUs, last: true });
  }

  stop(handle: ReceiveBufferHandle): void {
    const buffer = this.buffers.get(handle);
    for (const { from, name } of buffer?.queue.splice(0) ?? [])
      this.network.stop(this.nowUs, { from, to: buffer?.at ?? 0, name, kind: 'handoff' });
  }

  /** Runs a step; the pages that it computes leave while it runs. */
  step(at: number): void {
    const step = this.steps[at] ?? 0;
    this.steps[at] = step + 1;
    for (const [handle, { queue }] of this.buffers)
      if (queue[0]?.from === at && queue[0].step === step) this.begin(handle, this.nowUs + stepUs);
    const before = this.network.trafficBy(this.nowUs).sent[at] ?? 0;
    this.run(this.nowUs + stepUs);
    const counts = this.counts[at];
    if (counts !== undefined) counts.earlyBytes += (this.network.trafficBy(this.nowUs).sent[at] ?? 0) - before;
  }

  run(untilUs = Number.POSITIVE_INFINITY): void {
    for (;;) {
      this.network.refresh();
      const { nextUs } = this.network;
      if (nextUs > untilUs || nextUs === Number.POSITIVE_INFINITY) break;
      this.nowUs = nextUs;
      for (let left = this.network.due(nextUs); left !== undefined; left = this.network.due(nextUs))
        this.#left(left.name);
    }
    if (untilUs < Number.POSITIVE_INFINITY) this.nowUs = untilUs;
  }

  #left(name: string): void {
    for (const [handle, { at, queue, pages: places }] of this.buffers) {
      const [sent] = queue;
      if (sent?.name !== name) continue;
      queue.shift();
      for (let i = 0; i < sent.descriptors.length; i += descriptorWords) {
        const [page = 0, place = 0] = sent.descriptors.subarray(i + 1, i + descriptorWords);
        this.memory[at]?.[places[place] ?? 0]?.set(this.memory[sent.from]?.[page] ?? []);
      }
      const counts = this.counts[sent.from];
      if (counts !== undefined) {
        counts.pages += sent.descriptors.length / descriptorWords;
        counts.bytes = this.network.moved.handoff;
      }
      if (sent.last) this.complete.push(handle);
      this.begin(handle);
      return;
    }
  }
}

class SimulatedMessenger implements Messenger {
  readonly #world: SimulatedWorld;
  readonly #at: number;

  constructor(world: SimulatedWorld, at: number) {
    this.#world = world;
    this.#at = at;
  }

  get counts(): Messenger['counts'] {
    return { ...(this.#world.counts[this.#at] ?? never()), copySeconds: 0, faults: 0 };
  }

  get nextPoolStep(): number {
    return this.#world.steps[this.#at] ?? never();
  }

  open(own: Int32Array): ReceiveBufferHandle {
    if (own.some((page) => page < 0 || page >= pages))
      throw new RangeError('Cannot open a receive buffer: there is no such page');
    const handle = `buffer ${++this.#world.sends}`;
    this.#world.buffers.set(handle, { at: this.#at, pages: own, queue: [] });
    return handle;
  }

  arrivals(): undefined {}

  close(buffer: ReceiveBufferHandle): void {
    this.#world.stop(buffer);
    this.#world.buffers.delete(buffer);
  }

  received(): readonly ReceiveBufferHandle[] {
    this.#world.run();
    return this.#world.complete.splice(0).filter((handle) => this.#world.buffers.get(handle)?.at === this.#at);
  }

  unreachable(): readonly ReceiveBufferHandle[] {
    return [];
  }

  send(handle: ReceiveBufferHandle, step: number, descriptors: Int32Array, last: boolean): void {
    const buffer = this.#world.buffers.get(handle);
    if (buffer === undefined) return;
    for (let i = 0; i < descriptors.length; i += descriptorWords)
      if ((descriptors[i + 1] ?? pages) >= pages || (descriptors[i + 2] ?? 0) >= buffer.pages.length)
        throw new RangeError('Cannot send: there is no such page or slot');
    buffer.queue.push({ from: this.#at, descriptors, last, step, name: `${++this.#world.sends}` });
    if (buffer.queue.length === 1) this.#world.begin(handle);
  }

  stop(buffer: ReceiveBufferHandle): void {
    this.#world.stop(buffer);
  }

  pending(buffer: ReceiveBufferHandle): number {
    this.#world.run();
    const queue = this.#world.buffers.get(buffer)?.queue ?? [];
    return queue.reduce((sum, { descriptors }) => sum + descriptors.length / descriptorWords, 0);
  }

  transportTo(): 'tcp' {
    return 'tcp';
  }
}

function never(): never {
  throw new RangeError('there are two ends');
}

export function simulatedEnds(): readonly [sender: MessengerEnd, receiver: MessengerEnd] {
  const world = new SimulatedWorld();
  const blocks = [0, 1].map((block) => Array.from({ length: layers }, (_, layer) => block * layers + layer));
  const end = (at: number): MessengerEnd => {
    const memory = world.memory[at] ?? never();
    const pool: PagePool = {
      ...{ pages, pageBytes, blocks: [blocks[0] ?? [], blocks[1] ?? []] },
      step: (aborts) => {
        if (aborts === undefined) for (const page of blocks.flat()) memory[page]?.fill(world.steps[at] ?? 0);
        world.step(at);
      },
      read: (page) => memory[page]?.slice() ?? never(),
      write: (page, values) => memory[page]?.set(values),
    };
    return { pool, messenger: new SimulatedMessenger(world, at), awaken: async () => {} };
  };
  return [end(0), end(1)];
}
