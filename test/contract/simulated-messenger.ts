// The simulator's network behind the interface of messengers: pages are copied when it says that they have left, in simulated time.
import type { Messenger, ReceiveBufferHandle } from '../../src/runtime/transfer/messenger.ts';
import { Network } from '../../src/sim/network/network.ts';
import type { MessengerEnd, PagePool } from './messenger.ts';

const layers = 6;
const pages = 64;
const pageValues = 1024;
const pageBytes = pageValues * Float32Array.BYTES_PER_ELEMENT;
const stepUs = 1000;
/** Several pages in the time of a step. */
const nic = { bytesPerSecond: 20e6, us: 10 };
/** Layer, page, place. */
const parcelWords = 3;

/** What one call of `send` puts on the way. */
interface Sent {
  readonly from: number;
  readonly parcels: Int32Array;
  readonly last: boolean;
  /** The step that computes it; 0: it is there. */
  readonly step: number;
  readonly name: string;
}

interface Landing {
  readonly at: number;
  readonly pages: Int32Array;
  /** In order: the first one is on its way, unless a step is to compute it. */
  readonly queue: Sent[];
}

class SimulatedWorld {
  readonly network = new Network({ nics: [nic, nic], linkBytesPerSecond: undefined });
  readonly landings = new Map<ReceiveBufferHandle, Landing>();
  readonly complete: ReceiveBufferHandle[] = [];
  readonly memory = [0, 1].map(() => Array.from({ length: pages }, () => new Float32Array(pageValues)));
  readonly counts = [0, 1].map(() => ({ pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0 }));
  /** Of each end: the one that runs next. */
  readonly steps = [1, 1];
  nowUs = 0;
  sends = 0;

  begin(handle: ReceiveBufferHandle, untilUs = this.nowUs): void {
    const landing = this.landings.get(handle);
    const sent = landing?.queue[0];
    if (landing === undefined || sent === undefined || sent.step >= (this.steps[sent.from] ?? 0)) return;
    const bytes = (sent.parcels.length / parcelWords) * pageBytes;
    const { from, name } = sent;
    this.network.stream(this.nowUs, { from, to: landing.at, name, kind: 'handoff' }, { bytes, untilUs, last: true });
  }

  stop(handle: ReceiveBufferHandle): void {
    const landing = this.landings.get(handle);
    for (const { from, name } of landing?.queue.splice(0) ?? [])
      this.network.stop(this.nowUs, { from, to: landing?.at ?? 0, name, kind: 'handoff' });
  }

  /** What a step computes comes into being while it runs. */
  step(at: number): void {
    const step = this.steps[at] ?? 0;
    this.steps[at] = step + 1;
    for (const [handle, { queue }] of this.landings)
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
    for (const [handle, { at, queue, pages: places }] of this.landings) {
      const [sent] = queue;
      if (sent?.name !== name) continue;
      queue.shift();
      for (let i = 0; i < sent.parcels.length; i += parcelWords) {
        const [page = 0, place = 0] = sent.parcels.subarray(i + 1, i + parcelWords);
        this.memory[at]?.[places[place] ?? 0]?.set(this.memory[sent.from]?.[page] ?? []);
      }
      const counts = this.counts[sent.from];
      if (counts !== undefined) {
        counts.pages += sent.parcels.length / parcelWords;
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

  get nextStep(): number {
    return this.#world.steps[this.#at] ?? never();
  }

  open(own: Int32Array): ReceiveBufferHandle {
    if (own.some((page) => page < 0 || page >= pages))
      throw new RangeError('Cannot open a receive buffer: there is no such page');
    const handle = `landing ${++this.#world.sends}`;
    this.#world.landings.set(handle, { at: this.#at, pages: own, queue: [] });
    return handle;
  }

  arrivals(): undefined {}

  close(landing: ReceiveBufferHandle): void {
    this.#world.stop(landing);
    this.#world.landings.delete(landing);
  }

  received(): readonly ReceiveBufferHandle[] {
    this.#world.run();
    return this.#world.complete.splice(0).filter((handle) => this.#world.landings.get(handle)?.at === this.#at);
  }

  unreachable(): readonly ReceiveBufferHandle[] {
    return [];
  }

  send(handle: ReceiveBufferHandle, step: number, parcels: Int32Array, last: boolean): void {
    const landing = this.#world.landings.get(handle);
    if (landing === undefined) return;
    for (let i = 0; i < parcels.length; i += parcelWords)
      if ((parcels[i + 1] ?? pages) >= pages || (parcels[i + 2] ?? 0) >= landing.pages.length)
        throw new RangeError('Cannot send: there is no such page or slot');
    landing.queue.push({ from: this.#at, parcels, last, step, name: `${++this.#world.sends}` });
    if (landing.queue.length === 1) this.#world.begin(handle);
  }

  stop(landing: ReceiveBufferHandle): void {
    this.#world.stop(landing);
  }

  pending(landing: ReceiveBufferHandle): number {
    this.#world.run();
    const queue = this.#world.landings.get(landing)?.queue ?? [];
    return queue.reduce((sum, { parcels }) => sum + parcels.length / parcelWords, 0);
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
