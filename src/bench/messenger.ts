// Transfer rate of pages over TCP and shared memory, against a bare socket loop over the same memory.
import type { Backend } from '../kernel/backend.ts';
import { loadNative, type NativeModule, type Transport } from '../kernel/native/addon.ts';
import { NativeRemoteMessenger } from '../kernel/native/remote-messenger.ts';
import { median, percentile, round } from './statistics.ts';

export interface MessengerBench {
  /** KiB of a page, and of a frame: multiples of 8. */
  readonly pages: readonly number[];
  readonly frames: readonly number[];
  /** MiB per transfer. */
  readonly mebibytes: number;
  /** Rounds; each measures the three transports in turn. */
  readonly repeats: number;
  /** Cores of senders and receivers: 2 separates them, 1 makes them share one, 0 leaves them to the scheduler. */
  readonly cores: number;
  readonly onProgress: (line: string) => void;
}

export interface MessengerRow {
  readonly pageKiB: number;
  readonly frameKiB: number;
  /** Medians of rounds. */
  readonly tcpGBs: number;
  readonly sharedGBs: number;
  readonly socketsGBs: number;
  /** Ratios to sockets of the same round: medians, and for TCP the 10th and 90th percentiles. */
  readonly tcpRatio: number;
  readonly tcpRatioLow: number;
  readonly tcpRatioHigh: number;
  readonly sharedRatio: number;
  /** Median latency from sending one page to its notification. */
  readonly tcpPageUs: number;
  readonly sharedPageUs: number;
}

/** A bf16 page of one KV head of this many dimensions has 8 KiB. */
const headDim = 64;
const headKiB = 8;

/** @throws Error if the kernels are not compiled, or the system has too few cores */
export async function benchMessenger(backend: Backend, options: MessengerBench): Promise<readonly MessengerRow[]> {
  const native = loadNative();
  if (native === undefined || backend.isa === 'reference')
    throw new Error('Cannot measure the messenger: the native kernels are not compiled');
  const all = Int32Array.from(native.allowedCores());
  if (all.length < options.cores)
    throw new Error(`Cannot measure the messenger: --cores ${options.cores}, and the system has ${all.length}`);
  const [senders, receivers] =
    options.cores === 0 ? [all, all] : [all.subarray(0, 1), all.subarray(options.cores - 1, options.cores)];
  const rows: MessengerRow[] = [];
  for (const pageKiB of options.pages) {
    const count = Math.max(1, Math.floor((options.mebibytes * 1024) / pageKiB));
    for (const frameKiB of options.frames) {
      const run = { pageKiB, frameKiB, count, repeats: options.repeats, senders, receivers };
      try {
        rows.push(await measure(backend, native, run));
      } finally {
        native.setThreadAffinity(all);
      }
      options.onProgress(`pages of ${pageKiB} KiB, frames of ${frameKiB} KiB`);
    }
  }
  return rows;
}

interface Measure extends Pick<MessengerBench, 'repeats'> {
  readonly pageKiB: number;
  readonly frameKiB: number;
  /** Pages of a transfer. */
  readonly count: number;
  /** Cores. */
  readonly senders: Int32Array;
  readonly receivers: Int32Array;
}

async function measure(backend: Backend, native: NativeModule, run: Measure): Promise<MessengerRow> {
  const { pageKiB, frameKiB, count, repeats, senders, receivers } = run;
  const frameBytes = frameKiB * 1024;
  const spec = { type: 'bf16', kvHeads: pageKiB / headKiB, headDim, pages: count } as const;
  const [from, to] = [backend.createKvPool(spec), backend.createKvPool(spec)];
  // The wake-up handle does not keep this thread alive.
  const alive = setInterval(() => {}, 60_000);
  const open = (transport: Transport) =>
    new TransportPair(native, { from, to, transport, frameBytes, senders, receivers });
  const [tcp, shared] = [open('tcp'), open('shared')];
  try {
    const gigabytes = (count * pageKiB * 1024) / 1e9;
    const sockets = () => native.benchSockets(from, to, frameBytes, count, receivers);
    // Untimed warm-up: touches memory, as steps do, and opens connections.
    tcp.touchPages(count);
    for (const pair of [tcp, shared]) await pair.transfer(count);
    sockets();
    const rates: { tcp: number; shared: number; sockets: number }[] = [];
    const pageUs: { tcp: number; shared: number }[] = [];
    for (let i = 0; i < repeats; i++) {
      // The order reverses each round, since the cache state depends on it.
      const rate = { tcp: 0, sockets: 0, shared: 0 };
      const turns = [
        async () => Object.assign(rate, { tcp: gigabytes / (await tcp.transfer(count)) }),
        async () => Object.assign(rate, { sockets: gigabytes / sockets() }),
        async () => Object.assign(rate, { shared: gigabytes / (await shared.transfer(count)) }),
      ];
      for (const turn of i % 2 === 0 ? turns : turns.reverse()) await turn();
      rates.push(rate);
      pageUs.push({ tcp: (await tcp.transfer(1)) * 1e6, shared: (await shared.transfer(1)) * 1e6 });
    }
    const tcpRatios = rates.map((rate) => rate.tcp / rate.sockets);
    const middle = (values: readonly number[]) => round(median(values) ?? 0);
    return {
      ...{ pageKiB, frameKiB, tcpGBs: middle(rates.map((rate) => rate.tcp)) },
      ...{ sharedGBs: middle(rates.map((rate) => rate.shared)), socketsGBs: middle(rates.map((rate) => rate.sockets)) },
      ...{ tcpRatio: middle(tcpRatios), tcpRatioLow: round(percentile(tcpRatios, 10) ?? 0) },
      tcpRatioHigh: round(percentile(tcpRatios, 90) ?? 0),
      sharedRatio: middle(rates.map((rate) => rate.shared / rate.sockets)),
      ...{ tcpPageUs: middle(pageUs.map((us) => us.tcp)), sharedPageUs: middle(pageUs.map((us) => us.shared)) },
    };
  } finally {
    clearInterval(alive);
    for (const pair of [tcp, shared]) pair.free();
    for (const pool of [from, to]) backend.freeKvPool(pool);
  }
}

interface TransportPairOptions extends Pick<Measure, 'senders' | 'receivers'> {
  readonly from: number;
  readonly to: number;
  readonly transport: Transport;
  readonly frameBytes: number;
}

const firstPages = (count: number) => Int32Array.from({ length: count }, (_, i) => i);

/** A sender and a receiver over one transport. Their threads inherit the cores of the thread that starts them. */
class TransportPair {
  readonly #sender: NativeRemoteMessenger;
  readonly #receiver: NativeRemoteMessenger;
  #onReceived = (): void => {};

  constructor(native: NativeModule, { from, to, transport, frameBytes, senders, receivers }: TransportPairOptions) {
    const options = { host: '127.0.0.1', token: 'bench', transport, frameBytes };
    native.setThreadAffinity(receivers);
    this.#receiver = new NativeRemoteMessenger(to, options, () => this.#onReceived());
    // This thread starts the sender thread at the first transfer, and writes to the bare socket.
    native.setThreadAffinity(senders);
    this.#sender = new NativeRemoteMessenger(from, options, () => {});
  }

  /** Touches this number of pages, so that they have their final memory: huge pages, if available. */
  touchPages(count: number): void {
    this.#sender.close(this.#sender.open(firstPages(count)));
  }

  /** Seconds until this number of pages has arrived. */
  async transfer(count: number): Promise<number> {
    const receiveBuffer = this.#receiver.open(firstPages(count));
    const received = new Promise<void>((resolve) => {
      this.#onReceived = resolve;
    });
    const descriptors = Int32Array.from({ length: 3 * count }, (_, i) => (i % 3 === 0 ? 0 : Math.floor(i / 3)));
    const start = performance.now();
    this.#sender.send(receiveBuffer, 0, descriptors, true);
    await received;
    const seconds = (performance.now() - start) / 1000;
    this.#receiver.close(receiveBuffer);
    this.#receiver.received();
    return seconds;
  }

  free(): void {
    this.#sender.free();
    this.#receiver.free();
  }
}
