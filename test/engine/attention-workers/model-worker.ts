// A model worker and attention workers of one process, and steps of two sequences for them.
import { Engine } from '../../../src/engine/engine.ts';
import { freeModel, type LoadedModel, loadModel } from '../../../src/engine/load-model.ts';
import { groupedStep, type PlainPages, type PlainSequence, plainPages } from '../../../src/engine/plain-step.ts';
import { AttentionWorker, ShardSender, WorkerLink } from '../../../src/kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend, type NativeIsa } from '../../../src/kernel/native/native.ts';
import { nativeBackends } from '../backends.ts';
import { oddSpec } from '../models.ts';
import { bitRows, blocksFor, someTokens } from '../play.ts';

export const isa = nativeBackends.at(-1)?.name as NativeIsa;
export const token = 'a secret';
/** The time after which a link breaks without a result. */
export const deadlineMs = 600;
const blocks = 20;

/** Two sequences, one after the other, in the same blocks: the second has other pages for them. */
export const schedule: readonly { readonly sequence: PlainSequence; readonly mapping: 0 | 1 }[] = [0, 1].flatMap(
  (mapping) => {
    const tokens = someTokens(310, oddSpec.vocabSize, 5 + mapping);
    const cuts = [0, 40, 300, 301, 302];
    return cuts.slice(1).map((end, i) => ({
      mapping: mapping as 0 | 1,
      sequence: {
        tokens: tokens.slice(cuts[i], end),
        start: cuts[i],
        blocks: blocksFor(310, 0),
        logits: 'last' as const,
      },
    }));
  },
);

/** A model worker; its pages lie at attention workers, or here. */
export class ModelWorker {
  readonly #backend: NativeBackend;
  readonly #model: LoadedModel;
  readonly #engine: Engine;

  constructor(path: string, attention: 'workers' | 'pages') {
    this.#backend = createNativeBackend({ threads: 1, isa: isa });
    this.#model = loadModel({ model: path, backend: this.#backend, weights: 'bf16', inputs: 'bf16', attention });
    const { pages } = this;
    this.#engine = new Engine({
      ...{ model: this.#model, backend: this.#backend, tokensMax: 300, logitRowsMax: 1 },
      kvBytes: pages * this.#model.kv.pageBytes,
      ...(attention === 'workers' && { pagesAtWorkers: pages }),
    });
  }

  /** For links that the code of instances opens. */
  get parts(): { readonly backend: NativeBackend; readonly model: LoadedModel } {
    return { backend: this.#backend, model: this.#model };
  }

  get pages(): number {
    return 2 * blocks * this.#model.kv.groups.reduce((sum, { layers }) => sum + layers, 0);
  }

  shard(workers: number) {
    const { type, kvHeads, headDim } = this.#model.kv;
    return { type, kvHeads: kvHeads / workers, headDim };
  }

  connect(port: number, workers: number): WorkerLink {
    const options = { address: `127.0.0.1:${port}`, token, transport: 'tcp', deadlineMs } as const;
    return new WorkerLink({ backend: this.#backend, shard: this.shard(workers), ...options });
  }

  /** Sends pages to the attention worker. */
  sender(port: number, workers: number): ShardSender {
    return new ShardSender(this.#backend, this.connect(port, workers));
  }

  /** Its own pages. */
  get pool(): number {
    return this.#engine.pool;
  }

  /** Pages of the blocks. */
  pagesOf(mapping: 0 | 1): readonly PlainPages[] {
    return plainPages(2 * blocks, this.#model.kv.groups).map((group) => {
      const at = mapping * blocks * group.layers;
      return { ...group, pageTable: group.pageTable.slice(at, at + blocks * group.layers) };
    });
  }

  /** The bits of the logits; undefined: sequences of the step failed. */
  run(step: (typeof schedule)[number], links: readonly WorkerLink[]): Uint32Array | undefined {
    return this.runOver(
      step,
      Int32Array.from(links, ({ handle }) => handle),
    );
  }

  /** @param attentionWorkers handles of the links */
  runOver({ sequence, mapping }: (typeof schedule)[number], attentionWorkers: Int32Array): Uint32Array | undefined {
    const pages = this.pagesOf(mapping);
    const step = { ...groupedStep([sequence], pages), ...(attentionWorkers.length > 0 && { attentionWorkers }) };
    const outcome = this.#engine.run(step, new Int32Array(1));
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    const { failedSequences } = outcome.result;
    if (failedSequences.length > 0) return undefined;
    return bitRows(this.#engine.readLogits(1), 1)[0];
  }

  close(): void {
    this.#engine.close();
    freeModel(this.#model, this.#backend);
    this.#backend.close();
  }
}

/** An attention worker with a thread and pages of its own. */
export class OwnWorker {
  readonly worker: AttentionWorker;
  readonly #backend: NativeBackend;
  readonly #pool: ReturnType<NativeBackend['createKvPool']>;

  /** @param workers that share the KV heads of the model worker */
  constructor(model: ModelWorker, workers: number) {
    this.#backend = createNativeBackend({ threads: 1, isa });
    this.#pool = this.#backend.createKvPool({ ...model.shard(workers), pages: model.pages });
    const address = { host: '127.0.0.1', token, transport: 'tcp' } as const;
    this.worker = new AttentionWorker({ backend: this.#backend, pool: this.#pool, ...address });
  }

  get port(): number {
    return Number(this.worker.address.split(':')[1]);
  }

  close(): void {
    this.worker.close();
    this.#backend.freeKvPool(this.#pool);
    this.#backend.close();
  }
}
