// Divides the threads of one machine between model workers and attention workers, from the speeds of its thread teams.

import { assumedEfficiency } from '../cost/roofline.ts';
import type { ModelShape } from '../cost/shapes.ts';
import { Line } from '../cost/tables/interpolate.ts';
import { AttentionWorkersCost } from './attention-worker-cost.ts';
import type { KvPartition } from './choose-worker.ts';
import { type DopCandidate, type DopChoice, type DopLimits, planDop } from './dop-planner.ts';

/** Speeds that a team of threads reaches while the rest of the machine is idle, with the kernels of the model. */
export interface TeamSpeeds {
  readonly threads: number;
  /** Of weights in linear layers of one row. */
  readonly weightBytesPerSecond: number;
  /** Of linear layers with many rows. */
  readonly operationsPerSecond: number;
  /** Of keys and values in attention of one row per sequence. */
  readonly kvBytesPerSecond: number;
}

export interface ThreadPlanProblem {
  readonly model: ModelShape;
  /** Bytes of a weight, and of a value in K or V. */
  readonly weightBytes: number;
  readonly kvBytes: number;
  /** Bytes for the pages of all attention workers. */
  readonly kvMemoryBytes: number;
  /** By rising threads; the last entry has all threads of the instance. */
  readonly speeds: readonly TeamSpeeds[];
  readonly partition: KvPartition;
  /** Batches of one model worker; undefined: two. */
  readonly staggeredBatches?: number | undefined;
  readonly modelWorkersMax: number;
  readonly limits: Omit<DopLimits, 'alpha'>;
}

/** Devices are threads: `modelDevices` of all model workers, `attentionDevices` of all attention workers. */
export interface ThreadDivision extends DopCandidate {
  /** Both are 0 for an instance that computes attention itself. */
  readonly modelWorkers: number;
  readonly attentionWorkers: number;
}

export type ThreadChoice = ThreadDivision & DopChoice;

export interface ThreadPlan {
  /** Undefined: one sequence exceeds the memory or the TBT. */
  readonly oneInstance: ThreadChoice | undefined;
  /** The division with the most tokens per second; undefined: none can run. */
  readonly division: ThreadChoice | undefined;
  /** The division, if its tokens per second exceed those of one instance by the error of the measured speeds. */
  readonly chosen: ThreadChoice | undefined;
}

/** Assumed error of measured speeds: a division is chosen only if it is this many times as fast as one instance. */
const gainMin = 1.1;

/** A message through polled shared memory, as `kvasir bench attention-workers` measures it. */
const messageUs = 35;

/**
 * Compares one instance with every division that can run. Staggered batches need threads of their own on both sides, so
 * the threads are divided; a single batch is computed on one side at a time, and both sides have all of them.
 */
export function planThreads(problem: ThreadPlanProblem): ThreadPlan {
  const teams = new Teams(problem);
  const limits = { ...problem.limits, alpha: 1 };
  const [oneInstance] = planDop([teams.oneInstance()], limits, 'throughput');
  // Of equal divisions the first is chosen: the one with the fewest workers.
  const [division] = planDop([...divisionsOf(problem, teams)], limits, 'throughput');
  const isFaster = division !== undefined && division.tokensPerSecond > gainMin * (oneInstance?.tokensPerSecond ?? 0);
  return { oneInstance, division, chosen: isFaster ? division : undefined };
}

function* divisionsOf(problem: ThreadPlanProblem, teams: Teams): Iterable<ThreadDivision> {
  const { partition, model, staggeredBatches, modelWorkersMax, kvMemoryBytes, limits } = problem;
  const { threads } = teams;
  for (let modelWorkers = 1; modelWorkers <= Math.min(modelWorkersMax, threads); modelWorkers++) {
    // The number of batches of several model workers is given by their rotation.
    if (modelWorkers > 1 && staggeredBatches !== undefined) return;
    const batches = modelWorkers > 1 ? modelWorkers + 1 : (staggeredBatches ?? 2);
    for (let attentionWorkers = 1; attentionWorkers <= threads; attentionWorkers++) {
      if (partition === 'heads' && model.kvHeads % attentionWorkers !== 0) continue;
      // Partitioned by requests, a sequence lies whole at one worker.
      const parts = partition === 'heads' ? 1 : attentionWorkers;
      if (kvMemoryBytes / parts / teams.kvBytesPerToken < limits.contextTokens) break;
      if (batches === 1) yield teams.division(1, attentionWorkers, threads, threads, 1);
      else
        for (let attention = attentionWorkers; attention <= threads - modelWorkers; attention += attentionWorkers)
          yield teams.division(modelWorkers, attentionWorkers, threads - attention, attention, batches);
    }
  }
}

/** Cost models of thread teams. */
class Teams {
  readonly threads: number;
  readonly kvBytesPerToken: number;
  readonly #problem: ThreadPlanProblem;
  readonly #weights: Speed;
  readonly #operations: Speed;
  readonly #kv: Speed;

  constructor(problem: ThreadPlanProblem) {
    const { speeds, model, kvBytes } = problem;
    const sizes = speeds.map(({ threads }) => threads);
    this.#problem = problem;
    this.threads = Math.max(...sizes);
    this.kvBytesPerToken = 2 * model.layers * model.kvHeads * model.headDim * kvBytes;
    const speed = (value: (team: TeamSpeeds) => number) => new Speed(sizes, speeds.map(value));
    this.#weights = speed((team) => team.weightBytesPerSecond);
    this.#operations = speed((team) => team.operationsPerSecond);
    this.#kv = speed((team) => team.kvBytesPerSecond);
  }

  /** One team computes the model part and then the attention part, without messages. */
  oneInstance(): ThreadDivision {
    const { threads } = this;
    const cost = this.#cost({ replicas: 1, workers: 1, model: threads, attention: threads, batches: 1, messageUs: 0 });
    const workers = { modelWorkers: 0, attentionWorkers: 0 };
    return { ...workers, modelDevices: threads, attentionDevices: 0, batches: 1, cost, pricePerHour: 1 };
  }

  /** @param model threads of all model workers @param attention threads of all attention workers */
  division(
    modelWorkers: number,
    attentionWorkers: number,
    model: number,
    attention: number,
    batches: number,
  ): ThreadDivision {
    const cost = this.#cost({
      replicas: modelWorkers,
      workers: attentionWorkers,
      model,
      attention,
      batches,
      messageUs,
    });
    const workers = { modelWorkers, attentionWorkers };
    return { ...workers, modelDevices: model, attentionDevices: attention, batches, cost, pricePerHour: 1 };
  }

  #cost(team: {
    readonly replicas: number;
    readonly workers: number;
    readonly model: number;
    readonly attention: number;
    readonly batches: number;
    readonly messageUs: number;
  }): AttentionWorkersCost {
    const { model, weightBytes, kvBytes, kvMemoryBytes, partition } = this.#problem;
    const { replicas, workers, batches } = team;
    // The weights of the machine are there already, and the pages have a given size.
    const memory = { tensorParallel: 1, pipelineParallel: 1, memoryShare: 1, stepRows: 0 };
    const links = { linkBytesPerSecond: 1, linkUs: 0 };
    // Messages are copies in memory.
    const bytesPerSecond = team.messageUs === 0 ? Number.POSITIVE_INFINITY : this.#weights.most;
    return new AttentionWorkersCost({
      replica: {
        ...{ ...memory, model, weightBytes, kvBytes },
        efficiency: { ...assumedEfficiency, compute: 1, memory: 1 },
        device: {
          ...links,
          memoryBytes: Number.POSITIVE_INFINITY,
          memoryBytesPerSecond: this.#weights.of(replicas, Math.floor(team.model / replicas)),
          operationsPerSecond: this.#operations.of(replicas, Math.floor(team.model / replicas)),
        },
      },
      attentionDevice: {
        ...links,
        memoryBytes: kvMemoryBytes / workers,
        memoryBytesPerSecond: this.#kv.of(workers, Math.floor(team.attention / workers)),
        // The speed of keys and values includes their arithmetic.
        operationsPerSecond: Number.POSITIVE_INFINITY,
      },
      attentionWorkers: workers,
      partition,
      network: { messageUs: team.messageUs, bytesPerSecond, replicaNics: 1, attentionNics: 1 },
      batches,
      sharedBytesPerSecond: batches === 1 ? undefined : Math.max(this.#weights.most, this.#kv.most),
    });
  }
}

/** A speed by number of threads. */
class Speed {
  /** Of the whole machine. */
  readonly most: number;
  readonly #line: Line;

  constructor(threads: readonly number[], speeds: readonly number[]) {
    this.most = Math.max(...speeds);
    this.#line = new Line(threads, speeds);
  }

  /** Of each of several teams that compute at once: their sum is at most that of the machine. */
  of(teams: number, threads: number): number {
    return Math.min(this.#line.at(threads), this.most / teams);
  }
}
