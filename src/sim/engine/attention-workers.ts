// Attention workers of simulated instances: they are lost, instances learn of it later, and others have their places.
import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { RunningLengths } from '../../core/scheduler/executor/length-executor.ts';
import { Prng } from '../../util/prng.ts';
import { WorkerContents } from '../checks/worker-contents.ts';
import { countFault, type FaultCounts } from '../faults/fault-plan.ts';
import type { SimulatedExecutor, StepEnd } from './executor.ts';
import type { ClusterHost } from './simulation-config.ts';

interface WorkersHost extends ClusterHost {
  readonly executors: readonly SimulatedExecutor[];
  readonly faults: { readonly injected: FaultCounts } | undefined;
  deliverToInstanceAt(timeUs: number, index: InstanceIndex, event: LengthEvent): void;
  incarnationOf(index: InstanceIndex): number;
}

interface Worker {
  /** False from the loss until another worker has its place: no step is answered. */
  isLinked: boolean;
  /** The instance has received the loss, and not yet that the worker is ready. */
  isReportedLost: boolean;
  /** When another worker has its place. */
  replacedUs: number;
  /** Losses that this incarnation of the instance has received. */
  losses: number;
}

/** Mean times: until an instance learns of a loss, and between the copies of an event that arrives twice. */
const [noticeUs, duplicateUs] = [40_000, 20_000];
/** Probabilities that a broken connection is noticed at once, that an event arrives twice, and that one names no worker. */
const [atOnceRatio, duplicateRatio, orphanRatio] = [0.3, 0.3, 0.1];
/** Probability that a return moves shards, and the share of the pages that is left then. */
const [movedRatio, movedShare] = [0.2, 0.8];
/** Random stream of this file alone. */
const stream = 42;

export class SimulatedAttentionWorkers {
  /** Steps that a lost worker left without an answer. */
  failedSteps = 0;
  /** Sequences that ran at a loss and are computed again. */
  recomputed = 0;
  readonly #host: WorkersHost;
  readonly #prng: Prng;
  /** (instances, attention workers) */
  readonly #workers: readonly (readonly Worker[])[];
  /** (instances): partitioned by requests, a sequence lies whole at one worker. */
  readonly #byRequests: readonly boolean[];
  /** (instances): pages that the instance may use, fewer while some workers hold the shards of others. */
  readonly #pages: number[];
  /** (instances, attention workers; one for all that share the KV heads, none without workers); undefined without checks. */
  readonly #contents: readonly (readonly WorkerContents[])[] | undefined;

  constructor(host: WorkersHost) {
    const { instances, faults, checking, blockTokens } = host.config;
    this.#host = host;
    this.#prng = new Prng(faults?.seed ?? 0, stream);
    this.#workers = instances.map(({ machine }) =>
      Array.from({ length: machine.attentionWorkers?.workers ?? 0 }, () => ({
        ...{ isLinked: true, isReportedLost: false, replacedUs: 0, losses: 0 },
      })),
    );
    this.#byRequests = instances.map(({ machine }) => machine.attentionWorkers?.partition === 'requests');
    this.#pages = instances.map(() => Number.POSITIVE_INFINITY);
    const partsOf = (index: InstanceIndex) =>
      this.#byRequests[index] ? this.#workers[index].length : Math.min(1, this.#workers[index].length);
    this.#contents = checking
      ? instances.map((_, i) => Array.from({ length: partsOf(i) }, () => new WorkerContents(blockTokens)))
      : undefined;
  }

  /** Any worker of the instance loses its pages; another has its place after `forUs`. False if all are lost already. */
  lose(index: InstanceIndex, forUs: number): boolean {
    const linked = this.#workers[index].filter(({ isLinked }) => isLinked);
    if (linked.length === 0) return false;
    const worker = linked[this.#prng.integer(0, linked.length - 1)];
    worker.isLinked = false;
    worker.replacedUs = this.#host.queue.nowUs + forUs;
    const byRequests = this.#byRequests[index];
    this.#contents?.[index][byRequests ? this.#workers[index].indexOf(worker) : 0].clear();
    const lateUs = this.#prng.chance(atOnceRatio) ? 0 : this.#prng.exponentialUs(noticeUs);
    // The instance learns of the loss at once and aborts the step, or it learns later: the step ends without a result.
    const learnsNow = lateUs === 0 && !byRequests;
    if (!learnsNow && this.#uses(index, this.#workers[index].indexOf(worker))) this.#host.executors[index].abort();
    this.#after(index, lateUs, () => this.#reportLost(index, worker));
    return true;
  }

  stepStarted(index: InstanceIndex): void {
    const workers = this.#workers[index];
    const { inFlight } = this.#host.instances[index];
    const lost = workers.findIndex(({ isReportedLost }, worker) => isReportedLost && this.#uses(index, worker));
    if (lost >= 0)
      throw new Error(`Attention workers broken: instance ${index} starts a step while worker ${lost} is lost`);
    if (this.#pages[index] < Number.POSITIVE_INFINITY) this.#checkPages(index);
    for (const [part, contents] of this.#contents?.[index].entries() ?? [])
      contents.stepStarted(
        inFlight.filter((running) => this.#isAnswered(index, running) && this.#partOf(index, running) === part),
      );
    this.#failStep(index);
  }

  stepEnded(index: InstanceIndex, ended: StepEnd): void {
    if (ended.kind !== 'stepDone') return;
    for (const contents of this.#contents?.[index] ?? []) contents.stepEnded(ended.stepUs?.length ?? 1);
    if (ended.result !== undefined) this.failedSteps++;
  }

  /** True if the step in flight has rows for the worker. */
  #uses(index: InstanceIndex, worker: number): boolean {
    const { inFlight } = this.#host.instances[index];
    return !this.#byRequests[index] || inFlight.some(({ sequence }) => sequence.worker === worker);
  }

  #partOf(index: InstanceIndex, { sequence }: RunningLengths): number {
    return this.#byRequests[index] ? sequence.worker : 0;
  }

  /** True if all workers with blocks of the sequence are linked. */
  #isAnswered(index: InstanceIndex, { sequence }: RunningLengths): boolean {
    const workers = this.#workers[index];
    return this.#byRequests[index] ? workers[sequence.worker].isLinked : workers.every(({ isLinked }) => isLinked);
  }

  /** The next incarnation connects again, and takes the pages of all workers as empty. */
  instanceFailed(index: InstanceIndex): void {
    for (const contents of this.#contents?.[index] ?? []) contents.clear();
    this.#pages[index] = Number.POSITIVE_INFINITY;
    for (const worker of this.#workers[index]) {
      worker.isReportedLost = false;
      worker.losses = 0;
    }
  }

  instanceStarted(index: InstanceIndex): void {
    for (const worker of this.#workers[index]) {
      if (worker.replacedUs <= this.#host.queue.nowUs) worker.isLinked = true;
      else this.#reportLost(index, worker);
    }
  }

  /** Sequences with blocks at lost workers fail. */
  #failStep(index: InstanceIndex): void {
    const { inFlight } = this.#host.instances[index];
    const places = [...inFlight.keys()].filter((place) => !this.#isAnswered(index, inFlight[place]));
    if (places.length > 0) this.#host.executors[index].failStep(this.#prng.exponentialUs(noticeUs) + 1, places);
  }

  /** Unless the instance fails before. */
  #after(index: InstanceIndex, us: number, action: () => void): void {
    const { queue } = this.#host;
    const incarnation = this.#host.incarnationOf(index);
    queue.after(us, () => {
      if (this.#host.incarnationOf(index) === incarnation) action();
    });
  }

  #reportLost(index: InstanceIndex, worker: Worker): void {
    const { queue, executors } = this.#host;
    const { nowUs } = queue;
    const place = this.#workers[index].indexOf(worker);
    this.#deliverOrphan(index);
    worker.isReportedLost = true;
    worker.losses++;
    const { running, attentionWorkers } = this.#host.instances[index].snapshot();
    this.recomputed += attentionWorkers?.[place].sequences ?? running;
    const lost = { kind: 'attentionWorkerLost', worker: place } as const;
    this.#host.deliverToInstance(index, lost);
    const executor = executors[index];
    if (!this.#byRequests[index] && this.#contents !== undefined && executor.isRunning && executor.endsUs > nowUs)
      throw new Error(
        `Attention workers broken: instance ${index} continues its step after the loss of worker ${place}`,
      );
    const twiceUs = this.#prng.chance(duplicateRatio) ? this.#prng.exponentialUs(duplicateUs) : undefined;
    const readyUs = Math.max(worker.replacedUs, nowUs) - nowUs;
    if (twiceUs !== undefined && twiceUs < readyUs)
      this.#after(index, twiceUs, () => this.#host.deliverToInstance(index, lost));
    // At once, the aborted step has not ended yet.
    if (readyUs === 0) this.#reportReady(index, worker);
    else if (readyUs < Number.POSITIVE_INFINITY) this.#after(index, readyUs, () => this.#reportReady(index, worker));
  }

  #reportReady(index: InstanceIndex, worker: Worker): void {
    const place = this.#workers[index].indexOf(worker);
    const counted = this.#host.instances[index].snapshot().attentionWorkers?.[place].losses;
    if (counted !== worker.losses)
      throw new Error(
        `Attention workers broken: worker ${place} was lost ${worker.losses} times, the instance has counted ${counted}`,
      );
    const ready = { kind: 'attentionWorkerReady', worker: place, ...this.#movedPages(index) } as const;
    const { faults } = this.#host;
    worker.isLinked = true;
    worker.isReportedLost = false;
    if (faults !== undefined) countFault(faults.injected, 'attention worker replacement');
    this.#host.deliverToInstance(index, ready);
    this.#deliverOrphan(index);
    if (!this.#prng.chance(duplicateRatio)) return;
    // A late copy arrives before the next loss, on the connection of the same worker.
    this.#after(index, this.#prng.exponentialUs(duplicateUs), () => {
      if (!worker.isReportedLost) this.#host.deliverToInstance(index, ready);
    });
  }

  /** Sometimes the shard of a lost worker is at another one from now on, or all are at their own workers again. */
  #movedPages(index: InstanceIndex): { readonly pages?: number } {
    const { blocks: blocksMax, sparsity } = this.#host.config.instances[index].machine;
    const blocks = blocksMax && blocksMax * (sparsity?.sparseLayers.length ?? 1);
    const canMove = blocks !== undefined && this.#workers[index].length > 1 && !this.#byRequests[index];
    if (!canMove || !this.#prng.chance(movedRatio)) return {};
    const pages = this.#prng.chance(0.5) ? Math.floor(blocks * movedShare) : blocks;
    this.#pages[index] = pages;
    return { pages };
  }

  /** Throws if the step in flight uses a page that its workers do not have for the instance. */
  #checkPages(index: InstanceIndex): void {
    const { inFlight, pools } = this.#host.instances[index];
    for (const { id, sequence } of inFlight) {
      const { blocks } = sequence.table.groups[0];
      for (let i = 0; i < blocks.length; i++) {
        const page = pools[0].pageTable[blocks.at(i)];
        if (page >= this.#pages[index])
          throw new Error(`Attention workers broken: request ${id} uses page ${page} of ${this.#pages[index]}`);
      }
    }
  }

  /** Sometimes an event names a worker that does not exist. */
  #deliverOrphan(index: InstanceIndex): void {
    if (!this.#prng.chance(orphanRatio)) return;
    const worker = this.#workers[index].length + this.#prng.integer(0, 2);
    const kind = this.#prng.chance(0.5) ? 'attentionWorkerLost' : 'attentionWorkerReady';
    this.#host.deliverToInstance(index, { kind, worker });
  }
}
