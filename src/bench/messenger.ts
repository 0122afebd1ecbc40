// How fast the tcp messenger brings pages to another pool, against a bare socket loop over the same memory in the same run.
import type { Backend } from '../kernel/backend.ts';
import { loadNative, type NativeModule } from '../kernel/native-module.ts';
import { NativeTcpMessenger } from '../kernel/native-tcp-messenger.ts';
import { median, round } from './statistics.ts';

export interface MessengerBench {
  /** KiB of a page, and of a frame: multiples of 8. */
  readonly pages: readonly number[];
  readonly frames: readonly number[];
  /** MiB that are brought each time. */
  readonly mebibytes: number;
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

export interface MessengerRow {
  readonly pageKiB: number;
  readonly frameKiB: number;
  /** Medians of runs that take turns. */
  readonly messengerGBs: number;
  readonly socketsGBs: number;
  /** Messenger over sockets: median of all turns, and the fastest of each, which others on the machine disturbed least. */
  readonly ratio: number;
  readonly bestRatio: number;
}

/** A bf16 page of one KV head of this many dimensions has 8 KiB. */
const headDim = 64;
const headKiB = 8;

/** @throws Error where the kernels are not compiled */
export async function benchMessenger(backend: Backend, options: MessengerBench): Promise<readonly MessengerRow[]> {
  const native = loadNative();
  if (native === undefined || backend.isa === 'reference')
    throw new Error('Cannot measure the messenger: the native kernels are not compiled');
  const rows: MessengerRow[] = [];
  for (const pageKiB of options.pages) {
    const pages = Math.max(1, Math.floor((options.mebibytes * 1024) / pageKiB));
    for (const frameKiB of options.frames) {
      rows.push(await measure(backend, native, { pageKiB, frameKiB, count: pages, repeats: options.repeats }));
      options.onProgress(`pages of ${pageKiB} KiB, frames of ${frameKiB} KiB`);
    }
  }
  return rows;
}

interface Measure extends Pick<MessengerBench, 'repeats'> {
  readonly pageKiB: number;
  readonly frameKiB: number;
  /** Pages that are brought. */
  readonly count: number;
}

async function measure(backend: Backend, native: NativeModule, run: Measure): Promise<MessengerRow> {
  const { pageKiB, frameKiB, count, repeats } = run;
  const frameBytes = frameKiB * 1024;
  const spec = { type: 'bf16', kvHeads: pageKiB / headKiB, headDim, pages: count } as const;
  const [from, to] = [backend.createKvPool(spec), backend.createKvPool(spec)];
  const tcp = { host: '127.0.0.1', token: 'bench', transport: 'tcp', frameBytes } as const;
  let woken = (): void => {};
  // What wakes this thread does not keep it alive.
  const alive = setInterval(() => {}, 60_000);
  const sender = new NativeTcpMessenger(from, tcp, () => {});
  const receiver = new NativeTcpMessenger(to, tcp, () => woken());
  try {
    const bring = async (): Promise<number> => {
      const landing = receiver.open(Int32Array.from({ length: count }, (_, i) => i));
      const landed = new Promise<void>((resolve) => {
        woken = resolve;
      });
      const parcels = Int32Array.from({ length: 3 * count }, (_, i) => (i % 3 === 0 ? 0 : Math.floor(i / 3)));
      const start = performance.now();
      sender.send(landing, 0, parcels, true);
      await landed;
      const seconds = (performance.now() - start) / 1000;
      receiver.close(landing);
      receiver.landed();
      return seconds;
    };
    // Untimed: memory is touched and the connection made.
    await bring();
    native.benchSockets(from, to, frameBytes, count);
    const gigabytes = (count * pageKiB * 1024) / 1e9;
    const messenger: number[] = [];
    const sockets: number[] = [];
    for (let i = 0; i < repeats; i++) {
      messenger.push(gigabytes / (await bring()));
      sockets.push(gigabytes / native.benchSockets(from, to, frameBytes, count));
    }
    return {
      ...{ pageKiB, frameKiB, messengerGBs: round(median(messenger) ?? 0), socketsGBs: round(median(sockets) ?? 0) },
      ratio: round(median(messenger.map((rate, i) => rate / (sockets[i] ?? rate))) ?? 0),
      bestRatio: round(Math.max(...messenger) / Math.max(...sockets)),
    };
  } finally {
    clearInterval(alive);
    sender.free();
    receiver.free();
    for (const pool of [from, to]) backend.freeKvPool(pool);
  }
}
