// Cost of DistAttention: attention of a decode row over two instances against two threads, and queries against fetched pages.
import { plainPageTable, plainStep } from '../engine/plain-step.ts';
import type { HeadShape, Program } from '../graph/program.ts';
import type { Backend, KvPoolHandle, ProgramHandle } from '../kernel/backend.ts';
import { loadNative } from '../kernel/native/addon.ts';
import { NativeMessenger } from '../kernel/native/messenger.ts';
import { createRemoteAttentionClient, RemoteAttentionListener } from '../kernel/native/remote-attention-listener.ts';
import { NativeRemoteMessenger } from '../kernel/native/remote-messenger.ts';
import { pageTokens, type RemoteKeys, rangeTokens, remoteBlock, type Step } from '../util/step.ts';
import { median, round } from './statistics.ts';

export interface DistAttentionBench {
  /** A backend with two threads, and two with one thread each. */
  readonly two: Backend;
  readonly debtor: Backend;
  readonly creditor: Backend;
  readonly layers: number;
  /** Transport of queries and pages: inside a process, or between processes. */
  readonly transport: 'memory' | 'shared' | 'tcp';
  /** Context lengths of the split, half of them at the creditor. */
  readonly contexts: readonly number[];
  /** Remote lengths for queries against fetches. */
  readonly remote: readonly number[];
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

export interface SplitRow {
  readonly context: number;
  /** Attention of all layers for one row: medians of alternating runs. */
  readonly twoThreadsMs: number;
  readonly twoInstancesMs: number;
  /** Extra time of two instances, in percent of two threads: median over rounds. */
  readonly morePercent: number;
  /** Wait for the partials after the local part of the step. */
  readonly waitMs: number;
  readonly sameBits: boolean;
}

export interface ShippingRow {
  readonly remote: number;
  /** Bytes of one step: queries and partials, against the pages. */
  readonly shippedBytes: number;
  readonly fetchedBytes: number;
  readonly timesFewerBytes: number;
  /** Attention of all layers with remote keys; copying the pages; local attention over them. */
  readonly shippedMs: number;
  readonly fetchMs: number;
  readonly homeMs: number;
  /** (fetch + local) over shipped: median over rounds. */
  readonly timesFaster: number;
}

export interface DistAttentionReport {
  readonly split: readonly SplitRow[];
  readonly shipping: readonly ShippingRow[];
}

/** Heads of a model with a billion parameters. */
const shape: HeadShape = { heads: 32, kvHeads: 8, headDim: 64 };
const loan = 1;
const [host, token] = ['127.0.0.1', 'bench'];

/** @throws Error if the kernels are not compiled */
export async function benchDistAttention(options: DistAttentionBench): Promise<DistAttentionReport> {
  if (loadNative() === undefined || options.two.isa === 'reference')
    throw new Error('Cannot measure attention over instances: the native kernels are not compiled');
  const split: SplitRow[] = [];
  for (const context of options.contexts) {
    split.push(measureSplit(options, context));
    options.onProgress(`split of ${context} tokens`);
  }
  const shipping: ShippingRow[] = [];
  for (const remote of options.remote) {
    shipping.push(await measureShipping(options, remote));
    options.onProgress(`${remote} remote tokens`);
  }
  return { split, shipping };
}

/** Attention of one row of one sequence over the pool of a backend: a program of attention ops alone. */
class AttentionSide {
  readonly backend: Backend;
  readonly pool: KvPoolHandle;
  readonly pages: number;
  readonly #layers: number;
  readonly #program: ProgramHandle;
  readonly #abort = new Int32Array(1);

  /** @param firstBlock the block of the sequence that lies first in the pool: contents depend on the position in the sequence */
  constructor(backend: Backend, layers: number, tokens: number, firstBlock = 0) {
    this.backend = backend;
    this.#layers = layers;
    this.pages = Math.ceil(tokens / pageTokens) * layers;
    const { kvHeads, headDim } = shape;
    this.pool = backend.createKvPool({ pages: this.pages, kvHeads, headDim, type: 'bf16' });
    const kinds = Array.from({ length: pageKinds }, (_, kind) => pageValues(kind));
    for (let page = 0; page < this.pages; page++) {
      const values = kinds[(firstBlock + Math.floor(page / layers)) % pageKinds];
      if (values !== undefined) backend.writePage(this.pool, page, values);
    }
    this.#program = backend.createProgram(attentionOf(layers), {
      ...{ linears: [], vectors: [], tokensMax: 1, logitRowsMax: 1, contextMax: 2 ** 20 },
    });
    const columns = shape.heads * headDim;
    backend.writeBuffer(
      this.#program,
      0,
      1,
      Float32Array.from({ length: columns }, (_, i) => Math.sin(i)),
    );
  }

  /** The step of the last row of `context` tokens. The first ones are in `remote`. */
  step(context: number, remote: readonly RemoteKeys[]): Step {
    const count = Math.ceil(context / pageTokens);
    const gone = remote.reduce((sum, { blocks }) => sum + blocks.length, 0);
    const blocks = Array.from({ length: count }, (_, i) => (i < gone ? remoteBlock : i - gone));
    const table = plainPageTable(this.pages / this.#layers, this.#layers);
    const step = plainStep([{ tokens: [0], start: context - 1, blocks, logits: 'none' }], table, this.#layers);
    return { ...step, remote };
  }

  /** @returns milliseconds */
  run(step: Step): number {
    const start = performance.now();
    const outcome = this.backend.run(this.#program, this.pool, step, this.#abort);
    const ms = performance.now() - start;
    if (outcome.kind !== 'done' || outcome.result.failedSequences.length > 0)
      throw new Error('Cannot measure attention over instances: a query was not answered');
    return ms;
  }

  /** Bits of the last layer's output. */
  bits(): string {
    return Buffer.from(this.backend.readBuffer(this.#program, 1, 1).buffer).toString('base64');
  }

  free(): void {
    this.backend.freeProgram(this.#program);
    this.backend.freeKvPool(this.pool);
  }
}

function attentionOf(layers: number): Program {
  const columns = shape.heads * shape.headDim;
  return {
    buffers: [
      { rows: 'token', columns, kind: 'query' },
      { rows: 'token', columns, kind: 'f32' },
    ],
    ops: Array.from({ length: layers }, (_, index) => ({
      ...({ kind: 'attention', layer: { group: 0, index }, ...shape, scale: 1 / Math.sqrt(shape.headDim) } as const),
      ...{ window: undefined, softcap: undefined, slopes: undefined, stats: undefined, q: 0, out: 1 },
    })),
    logits: undefined,
    hidden: undefined,
    kvType: 'bf16',
    groups: [{ layers, window: undefined }],
  };
}

const pageKinds = 7;

/** Values that are neither subnormal nor overflow. */
function pageValues(kind: number): Float32Array {
  const count = 2 * shape.kvHeads * pageTokens * shape.headDim;
  return Float32Array.from({ length: count }, (_, i) => Math.sin((1.3 + kind / 10) * i));
}

/** Lends the blocks of `tokens` tokens to the home instance. Returns its remote keys. */
function lend({ layers, transport }: DistAttentionBench, lender: AttentionSide, home: AttentionSide, tokens: number) {
  const own = lender.backend.createRemoteAttentionServer(lender.pool);
  const blocks = Int32Array.from({ length: tokens / pageTokens }, (_, i) => i);
  lender.backend.lendBlocks(own, loan, blocks, plainPageTable(blocks.length, layers));
  const between = transport === 'memory' ? undefined : transport;
  const listener = between && new RemoteAttentionListener(own, { host, token, transport: between });
  const server =
    listener === undefined ? own : createRemoteAttentionClient(home.pool, listener.address, token, between);
  const keys: RemoteKeys = { sequence: 0, group: 0, firstBlock: 0, server, loan, blocks };
  const free = (): void => {
    if (server !== own) home.backend.freeRemoteAttentionServer(server);
    listener?.close();
    lender.backend.freeRemoteAttentionServer(own);
  };
  return { keys, free };
}

function measureSplit(options: DistAttentionBench, context: number): SplitRow {
  const { two, debtor, creditor, layers, repeats } = options;
  const half = Math.floor(context / 2 / rangeTokens) * rangeTokens;
  const [whole, home, lender] = [
    new AttentionSide(two, layers, context),
    new AttentionSide(debtor, layers, context - half, half / pageTokens),
    new AttentionSide(creditor, layers, half),
  ];
  const { keys, free } = lend(options, lender, home, half);
  try {
    const alone = whole.step(context, []);
    const split = home.step(context, [keys]);
    for (let i = 0; i < 2; i++) {
      whole.run(alone);
      home.run(split);
    }
    const waitedBefore = debtor.remoteCounts().waitSeconds;
    const twoThreads: number[] = [];
    const twoInstances: number[] = [];
    for (let i = 0; i < repeats; i++) {
      twoThreads.push(whole.run(alone));
      twoInstances.push(home.run(split));
    }
    const waited = debtor.remoteCounts().waitSeconds - waitedBefore;
    const ratios = twoInstances.map((ms, i) => ms / (twoThreads[i] ?? ms));
    return {
      ...{ context, twoThreadsMs: round(median(twoThreads) ?? 0), twoInstancesMs: round(median(twoInstances) ?? 0) },
      morePercent: round(100 * ((median(ratios) ?? 1) - 1)),
      waitMs: round((waited * 1000) / repeats),
      sameBits: whole.bits() === home.bits(),
    };
  } finally {
    free();
    for (const side of [whole, home, lender]) side.free();
  }
}

async function measureShipping(options: DistAttentionBench, remote: number): Promise<ShippingRow> {
  const { debtor, creditor, layers, repeats } = options;
  const [home, lender] = [
    new AttentionSide(debtor, layers, remote + pageTokens),
    new AttentionSide(creditor, layers, remote),
  ];
  const { keys, free } = lend(options, lender, home, remote);
  const fetcher = new Fetcher(lender, home, options.transport);
  try {
    const split = home.step(remote + 1, [keys]);
    const localStep = home.step(remote + 1, []);
    await fetcher.fetch();
    for (const step of [split, localStep]) home.run(step);
    const before = debtor.remoteCounts();
    const [shipped, fetched, local]: [number[], number[], number[]] = [[], [], []];
    for (let i = 0; i < repeats; i++) {
      shipped.push(home.run(split));
      fetched.push(await fetcher.fetch());
      local.push(home.run(localStep));
    }
    const after = debtor.remoteCounts();
    const shippedBytes = (after.bytesOut - before.bytesOut + after.bytesIn - before.bytesIn) / repeats;
    const ratios = shipped.map((ms, i) => ((fetched[i] ?? 0) + (local[i] ?? 0)) / ms);
    return {
      ...{ remote, shippedBytes, fetchedBytes: fetcher.bytes, timesFewerBytes: round(fetcher.bytes / shippedBytes) },
      ...{
        shippedMs: round(median(shipped) ?? 0),
        fetchMs: round(median(fetched) ?? 0),
        homeMs: round(median(local) ?? 0),
      },
      timesFaster: round(median(ratios) ?? 0),
    };
  } finally {
    fetcher.free();
    free();
    for (const side of [home, lender]) side.free();
  }
}

/** Copies all pages of one pool to the first pages of another, over the transport of instances. */
class Fetcher {
  readonly bytes: number;
  readonly #sender: NativeMessenger | NativeRemoteMessenger;
  readonly #receiver: NativeMessenger | NativeRemoteMessenger;
  readonly #pages: number;
  // The wake-up handle does not keep this thread alive.
  readonly #alive = setInterval(() => {}, 60_000);
  #onReceived = (): void => {};

  constructor(from: AttentionSide, to: AttentionSide, transport: DistAttentionBench['transport']) {
    this.#pages = from.pages;
    this.bytes = from.pages * 2 * shape.kvHeads * pageTokens * shape.headDim * Uint16Array.BYTES_PER_ELEMENT;
    const open = (pool: KvPoolHandle, wake: () => void) =>
      transport === 'memory'
        ? new NativeMessenger(pool, wake)
        : new NativeRemoteMessenger(pool, { host, token, transport }, wake);
    this.#sender = open(from.pool, () => {});
    this.#receiver = open(to.pool, () => this.#onReceived());
  }

  /** @returns milliseconds */
  async fetch(): Promise<number> {
    const receiveBuffer = this.#receiver.open(Int32Array.from({ length: this.#pages }, (_, page) => page));
    const descriptors = Int32Array.from({ length: 3 * this.#pages }, (_, i) => (i % 3 === 0 ? 0 : Math.floor(i / 3)));
    const received = new Promise<void>((resolve) => {
      this.#onReceived = resolve;
    });
    const start = performance.now();
    this.#sender.send(receiveBuffer, 0, descriptors, true);
    await received;
    const ms = performance.now() - start;
    this.#receiver.close(receiveBuffer);
    this.#receiver.received();
    return ms;
  }

  free(): void {
    clearInterval(this.#alive);
    this.#sender.free();
    this.#receiver.free();
  }
}
