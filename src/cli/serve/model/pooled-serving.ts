// Models that load on demand: the requests of an endpoint, and the server's own part of each loaded model.
import type { ClusterPort, InferencePort, InstanceRole } from '../../../core/protocol/ports.ts';
import { ApiError, badField } from '../../../gateway/http/errors.ts';
import {
  type ModelCard,
  type ModelFigures,
  type ModelParts,
  type ModelUse,
  type ServedModels,
  unknownModel,
} from '../../../gateway/models/served-models.ts';
import { clientDisconnected } from '../../../gateway/openai/run-choices.ts';
import { loadNative } from '../../../kernel/native/addon.ts';
import { type LoadedModel, ModelPool, ModelUnavailable } from '../../../runtime/models/model-pool.ts';
import { PooledClusters } from '../../../runtime/models/pooled-clusters.ts';
import type { InstanceDescription } from '../../../runtime/threads/thread-protocol.ts';
import { describeInstances } from '../describe-instances.ts';
import type { Serving } from '../open-serving.ts';

interface LoadedServing extends LoadedModel {
  readonly parts: ModelParts;
}

/** What a load of a model opens. */
export interface OpenedServing extends Omit<ModelParts, 'port' | 'cluster'> {
  readonly cluster: InferencePort & ClusterPort & Pick<Serving['cluster'], 'ready' | 'ended'>;
  close(): Promise<void>;
}

export interface PooledServingOptions {
  readonly models: readonly { readonly card: ModelCard; readonly expectedBytes: number }[];
  /** Memory of all loaded models together. */
  readonly bytesMax: number;
  /** (instances of each model) */
  readonly roles: readonly InstanceRole[];
  /** Requests in flight at once, of all models together. */
  readonly queueMax: number;
  open(id: string): Promise<OpenedServing>;
  log(line: string): void;
}

/** Opens the instances and the text side of a model for each of its loads. */
export class PooledServing implements ServedModels {
  readonly cards: readonly ModelCard[];
  readonly clusters: PooledClusters;
  readonly #options: PooledServingOptions;
  readonly #pool: ModelPool<LoadedServing>;

  constructor(options: PooledServingOptions) {
    const { models, bytesMax, roles, queueMax, log } = options;
    this.#options = options;
    this.cards = models.map(({ card }) => card);
    const load = (id: string) => () => this.#load(id);
    const pooled = models.map(({ card: { id }, expectedBytes }) => ({ name: id, expectedBytes, load: load(id) }));
    this.#pool = new ModelPool(pooled, { bytesMax, log });
    const ids = this.cards.map(({ id }) => id);
    this.clusters = new PooledClusters({ models: ids, roles, queueMax, waiting: () => this.#pool.waiting });
  }

  figures(): readonly ModelFigures[] {
    const status = this.#pool.status();
    return this.clusters.snapshotsByModel().map((figures, i) => ({ ...figures, loads: status[i] }));
  }

  async use<T>(name: unknown, use: ModelUse, run: (parts: ModelParts) => Promise<T>): Promise<T> {
    const known = this.cards.map(({ id }) => id);
    if (typeof name !== 'string') {
      const got = name === undefined || name === null ? 'is missing' : 'must be a string';
      throw badField('model', `Cannot accept request: 'model' ${got}`);
    }
    if (!known.includes(name)) throw unknownModel(name, known);
    try {
      return await this.#pool.use(name, use, ({ parts }) => run(parts));
    } catch (error) {
      if (error instanceof ModelUnavailable) throw unavailable(error);
      // The wait for a load ends so when the client disconnects.
      if (use.signal.aborted && error === use.signal.reason) throw clientDisconnected();
      throw error;
    }
  }

  close(): Promise<void> {
    return this.#pool.close();
  }

  async #load(id: string): Promise<LoadedServing> {
    const { open, log } = this.#options;
    const opened = await open(id);
    let instances: readonly InstanceDescription[];
    try {
      instances = await opened.cluster.ready();
    } catch (error) {
      await opened.close();
      throw error;
    }
    for (const line of describeInstances(id, instances).split('\n')) log(line);
    return this.#attach(id, opened, instances);
  }

  #attach(id: string, opened: OpenedServing, instances: readonly InstanceDescription[]): LoadedServing {
    const { model, encode, grammars } = opened;
    const cluster = this.clusters.attach(id, opened.cluster);
    return {
      bytes: heldBytes(instances),
      parts: { model, port: cluster, cluster, encode, grammars },
      ended: opened.cluster.ended.then(() => 'no instance of it is left; the lines above have the reasons'),
      get isBusy() {
        return cluster.isBusy;
      },
      close: async () => {
        cluster.detach();
        await opened.close();
        loadNative()?.trimHeap();
        this.#options.log(`Model ${id} is unloaded`);
      },
    };
  }
}

/** Instances share the weights. */
function heldBytes(instances: readonly InstanceDescription[]): number {
  const weights = Math.max(...instances.map(({ weightBytes: bytes }) => bytes));
  const copies = instances.some(({ isa }) => isa === 'reference') ? instances.length : 1;
  const memories = instances.map(
    ({ kvBytes, tiers }) => kvBytes + (tiers === undefined ? 0 : tiers.hostBlocks * tiers.blockBytes),
  );
  return copies * weights + memories.reduce((sum, bytes) => sum + bytes, 0);
}

function unavailable({ message, reason, retryAfterMs, figures }: ModelUnavailable): ApiError {
  const code = { memory: 'model_memory', failed: 'model_load_failed', closing: 'shutting_down' }[reason];
  const refusal = figures && {
    reason: 'models_memory',
    needed_bytes: figures.needed,
    held_bytes: figures.held,
    limit_bytes: figures.limit,
  };
  return new ApiError(503, message, { code, param: 'model', retryAfterMs, refusal });
}
