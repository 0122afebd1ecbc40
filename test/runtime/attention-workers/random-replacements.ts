// Random losses of attention workers and failed replacements: what the driver reports must agree with the workers.
import { firstPage, pagesPerShard } from '../../../src/core/attention-workers/shard-homes.ts';
import type {
  LinkedWorker,
  LiveAttentionWorkers,
  ShardHome,
} from '../../../src/runtime/attention-workers/live-attention-workers.ts';
import { Prng } from '../../../src/util/prng.ts';

export class FakeWorker implements LinkedWorker {
  handle: number;
  isLost = false;
  isBroken = false;
  /** Attempts to replace it that fail. */
  failures = 0;
  /** Polls of an attempt before it ends. */
  polls = 0;
  /** Attempts to replace it that have ended, and calls that begin or poll one. */
  attempts = 0;
  calls = 0;
  readonly counts = { calls: 0, bytesOut: 0, bytesIn: 0, waitSeconds: 0, earlySeconds: 0, lateSeconds: 0 };

  constructor(handle: number) {
    this.handle = handle;
  }

  closeIfBroken(): boolean {
    if (!this.isBroken) return false;
    this.isBroken = false;
    this.isLost = true;
    this.handle = 0;
    return true;
  }

  get handles(): readonly number[] {
    return [this.handle, 10 * this.handle];
  }

  /** Its process does not exist: it can be replaced by another worker only. */
  isDown = false;
  /** Where the shard is; undefined: at its own place. */
  home: ShardHome | undefined;

  close(): void {
    this.isLost = true;
    this.handle = 0;
  }

  reopen(home?: ShardHome): 'open' | 'opening' | { readonly why: string } {
    this.calls++;
    if (this.polls-- > 0) return 'opening';
    this.attempts++;
    if (this.failures-- > 0) return { why: 'there is no memory' };
    if (home === undefined && this.isDown) return { why: 'its process does not exist' };
    this.isLost = false;
    this.handle = 9;
    this.home = home;
    return 'open';
  }
}

/** Time within which a lost worker is tried again, and at most once for each loss besides. */
const retryUs = 1_000_000;

/** @throws Error on the first broken rule */
export function runReplacements(Live: typeof LiveAttentionWorkers, seed: number): void {
  const prng = new Prng(seed, 1);
  const workers = Array.from({ length: prng.integer(1, 4) }, (_, i) => new FakeWorker(i + 1));
  const moves = prng.chance(0.5) ? { afterUs: prng.integer(0, 2_000_000), pages: 120 } : undefined;
  const live = new Live(workers, () => {}, moves);
  const ready = workers.map(() => true);
  const calledUs = workers.map(() => 0);
  let losses = 0;
  /** Those of the last event that has them. */
  let pages = moves?.pages;
  let us = 0;
  for (let turn = 0; turn < 300; turn++) {
    us = prng.chance(0.1) && live.nextUs > us && live.nextUs < Infinity ? live.nextUs : us + prng.integer(1, 200_000);
    for (const [i, worker] of workers.entries()) {
      if (moves !== undefined && prng.chance(0.01)) worker.isDown = !worker.isDown;
      // A process that ends breaks all links to it.
      const isAtDead = workers[worker.home?.worker ?? i].isDown;
      if (worker.isLost || !(isAtDead || prng.chance(0.02))) continue;
      worker.isBroken = true;
      worker.failures = prng.integer(0, 3);
      worker.polls = prng.integer(0, 3);
    }
    const calls = workers.map((worker) => worker.calls);
    const lost = workers.map(({ isLost }) => isLost);
    for (const event of live.poll(us)) {
      if (event.kind !== 'attentionWorkerLost' && event.kind !== 'attentionWorkerReady')
        throw new Error(`Replacements broken: ${event.kind} is no event of attention workers`);
      const isReady = event.kind === 'attentionWorkerReady';
      if (ready[event.worker] === isReady)
        throw new Error(`Replacements broken: ${event.kind} comes twice for worker ${event.worker}`);
      ready[event.worker] = isReady;
      if (!isReady) losses++;
      if (isReady) pages = event.pages;
    }
    if (!ready.includes(false)) checkPages(workers, moves?.pages, pages);
    for (const [i, worker] of workers.entries()) {
      if (worker.isLost === ready[i])
        throw new Error(`Replacements broken: worker ${i} is lost, and the instance takes it as ready`);
      for (const [batch, handles] of live.handles.entries())
        if (handles[i] !== worker.handles[batch])
          throw new Error(`Replacements broken: steps use links ${handles}, and worker ${i} has ${worker.handles}`);
      const isCalled = worker.calls > calls[i];
      if (isCalled) calledUs[i] = us;
      if (!isCalled && lost[i] && us >= calledUs[i] + retryUs)
        throw new Error(`Replacements broken: the lost worker ${i} is not tried again at its time`);
    }
    if (workers.some(({ isLost }) => isLost) && live.nextUs > us + retryUs)
      throw new Error('Replacements broken: a lost worker is not tried again');
    const tried = workers.reduce((sum, worker) => sum + worker.attempts, 0);
    if (tried > losses + workers.length * (1 + us / retryUs))
      throw new Error(`Replacements broken: ${tried} attempts within ${us / 1e6} s after ${losses} losses`);
  }
}

/** @throws Error if the instance uses more pages than the shards have, or two shards share pages */
function checkPages(workers: readonly FakeWorker[], pages: number | undefined, reported: number | undefined): void {
  if (pages === undefined) return;
  const homes = workers.map(({ home }, i) => home?.worker ?? i);
  const firsts = workers.map(({ home }) => home?.firstPage ?? 0);
  if (reported !== pagesPerShard(homes, pages))
    throw new Error(`Replacements broken: the instance uses ${reported} pages with shards at ${homes}`);
  for (const [shard, home] of homes.entries())
    if (firsts[shard] !== firstPage(shard, home, homes.length, pages))
      throw new Error(`Replacements broken: shard ${shard} begins at page ${firsts[shard]} of worker ${home}`);
}
