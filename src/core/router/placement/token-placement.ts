// Placement of requests with token ids: block hashes of their prompts, and learned prefill times.

import { pageTokens } from '../../../util/step.ts';
import type { PrefillPredictor } from '../../cost/prefill.ts';
import { isEngineRoot } from '../../fleet/engine-root.ts';
import type { PublishedBlocks } from '../../fleet/published-blocks.ts';
import { type BlockRoot, rootDigest } from '../../kvcache/block-hash.ts';
import type { PipelineSettings } from '../../pipeline/group.ts';
import { PipelinePredictor, type PipelineTimes } from '../../pipeline/pipeline-predictor.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { PlacedLoad } from '../../protocol/instance-report.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot } from '../../protocol/ports.ts';
import { kvBudgetOf } from '../../protocol/request-size.ts';
import { layersOf } from '../../protocol/step-shape.ts';
import { TokenContent } from '../../scheduler/batching/token-content.ts';
import { batchLimits } from '../../scheduler/executor/token-limits.ts';
import type { LearnedTransfers } from './learned-transfers.ts';
import { balancingThresholdDefault } from './placement.ts';
import type { PlacerConfig, PromptModel } from './placer.ts';
import { PrefillObserver } from './prefill-observer.ts';

/** Initial size of the prefix index, in blocks: it grows. */
const blocks = 4_096;
/** Number of evicted blocks that the index remembers, to distinguish evicted blocks from those never seen. */
const rememberedBlocks = 65_536;
/** From one member of a group to the next: a message, and rows in shared memory. */
const hopUs = 1_000;
/** Smallest chunk of a group, in tokens. */
const stageTokensMin = 128;

/** Pipeline groups over the layers of the model. */
export interface TokenPipeline extends PipelineSettings {
  readonly layers: number;
}

export class TokenPlacement implements PromptModel<GenerationRequest> {
  readonly #hashKey: Uint32Array;
  readonly #published: PublishedBlocks | undefined;
  #observer = new PrefillObserver([]);
  readonly #chains = new WeakMap<GenerationRequest, BlockChain>();
  #root: BlockRoot | undefined;
  /** The digest of the latest salt: most requests have the same one. */
  #latest: { readonly salt: string; readonly digest: Uint32Array } | undefined;
  #transfers: LearnedTransfers | undefined;
  #pipeline: TokenPipeline | undefined;

  /**
   * @param hashKey keys the block hashes of the cluster
   * @param published receives the blocks of instances and the tokens of requests
   */
  constructor(hashKey: Uint32Array, published?: PublishedBlocks) {
    this.#hashKey = hashKey;
    this.#published = published;
  }

  /**
   * The model is loaded.
   * @param root first hash of every block chain
   * @param kinds (instances): equal for instances of equal speed
   * @param transfers undefined: prefixes do not move between instances
   */
  begin(root: BlockRoot, kinds: readonly number[], transfers?: LearnedTransfers, pipeline?: TokenPipeline): void {
    this.#root = root;
    this.#latest = undefined;
    this.#pipeline = pipeline;
    this.#transfers = transfers;
    this.#observer = new PrefillObserver(kinds);
  }

  /** Another machine takes the place of the instance. */
  replaced(instance: InstanceIndex): void {
    this.#observer.times[instance]?.reset();
    this.#observer.setOthers(instance, undefined);
  }

  /** Takes the load that other conductors have placed on the instance. */
  observeOthers(instance: InstanceIndex, others: PlacedLoad | undefined): void {
    this.#observer.setOthers(instance, others);
  }

  /** Takes the learned step times of an instance. */
  observe(instance: InstanceIndex, snapshot: InstanceSnapshot): void {
    this.#observer.observe(instance, snapshot);
  }

  /** (instances) */
  get prefills(): readonly PrefillPredictor[] {
    return this.#observer.times;
  }

  get config(): PlacerConfig<GenerationRequest> {
    return {
      kind: 'cache-aware',
      seed: [0, 0],
      balancingThreshold: balancingThresholdDefault,
      blockTokens: pageTokens,
      prompts: this,
      predictors: this.#observer.times,
      transfers: this.#transfers?.config,
      ssds: this.#transfers?.ssds,
      stepUs: () => batchLimits.stepUsPrefill,
      // Instances that fetch pages start steps that wait for them.
      aheadRows: this.#transfers && batchLimits.tokensMax,
      pipeline: this.#pipeline && {
        ...this.#pipeline,
        prefills: this.#groupPrefills(this.#pipeline),
      },
      blocks,
      rememberedBlocks,
      recordsPrefixes: true,
      heldBlocks: this.#published,
    };
  }

  /** (instances): one for instances that share learned prefill times. */
  #groupPrefills({ layers }: TokenPipeline): readonly PipelinePredictor[] {
    const { tokensMax, stepUsPrefill } = batchLimits;
    return this.#observer.times.map((times) => {
      const predictStageUs: StageTimes = ({ rows }, range) =>
        (times.prefillUs(rows, 0) * layersOf(layers, range)) / layers;
      return new PipelinePredictor({
        ...{ steps: { predictStageUs }, layers, hopUs: () => hopUs },
        ...{ chunkTokensMax: tokensMax, chunkTokensMin: stageTokensMin, othersUs: stepUsPrefill },
      });
    });
  }

  /** @param isAlone its prefill predicts those of the instance: no group computes it */
  forwarded(instance: InstanceIndex, request: GenerationRequest, isAlone = true): void {
    const { id, prompt, salt, resumed } = request;
    if (isAlone) this.#observer.forwarded(instance, id, prompt.length);
    this.#published?.begun(id, this.#rootOf(request), salt, prompt, resumed?.tokens);
  }

  received(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    this.#observer.received(nowUs, instance, id, event);
    if (event.kind === 'tokens') this.#published?.generated(id, event.tokens, event.at);
  }

  /** The prefill has ended. */
  prefilled(nowUs: number, id: RequestId): void {
    this.#observer.prefilled(nowUs, id);
  }

  /** Prefills under observation. */
  get observed(): number {
    return this.#observer.size;
  }

  /** The request has ended or was cancelled. */
  forget(id: RequestId): void {
    this.#observer.forget(id);
    this.#published?.ended(id);
  }

  chainOf(request: GenerationRequest): BlockChain {
    const known = this.#chains.get(request);
    if (known !== undefined) return known;
    const { chain } = new TokenContent(request.prompt, this.#rootOf(request));
    this.#chains.set(request, chain);
    return chain;
  }

  #rootOf({ salt }: GenerationRequest): Uint32Array {
    if (this.#root === undefined) throw new Error('Cannot place request: the model is not loaded');
    if (this.#latest?.salt !== salt) this.#latest = { salt, digest: rootDigest(this.#root, salt, this.#hashKey) };
    return this.#latest.digest;
  }

  priorityOf({ priority }: GenerationRequest): number {
    return priority;
  }

  /** External engines do not distinguish tenants. */
  tenantOf({ tenant = '' }: GenerationRequest): string {
    return this.#root === undefined || isEngineRoot(this.#root) ? '' : tenant;
  }

  /** One instance computes a request with a grammar, an embedding or a KV budget. */
  mayPipeline(request: GenerationRequest): boolean {
    const { grammar, pooling } = request;
    const kvBudget = kvBudgetOf(request) ?? (this.#pipeline?.budgetByDefault === true ? undefined : 'full');
    return grammar === undefined && pooling === undefined && kvBudget === 'full';
  }
}

type StageTimes = PipelineTimes['steps']['predictStageUs'];
