// What the conductor of token instances places by: blocks that they tell of, and prefill times as they turn out.

import { pageTokens } from '../../../util/step.ts';
import type { PrefillPredictor } from '../../cost/prefill.ts';
import { type BlockRoot, rootDigest } from '../../kvcache/block-hash.ts';
import type { PipelineSettings } from '../../pipeline/group.ts';
import { PipelinedPrefill, type PipelineTimes } from '../../pipeline/pipelined-prefill.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { GenerationEvent, GenerationRequest } from '../../protocol/ports.ts';
import { layersOf } from '../../protocol/step-shape.ts';
import { TokenContent } from '../../scheduler/batching/token-content.ts';
import { batchLimits } from '../../scheduler/executor/token-limits.ts';
import type { LearnedTransfers } from './learned-transfers.ts';
import type { PlacerConfig, PromptModel } from './placer.ts';
import { PrefillObserver } from './prefill-observer.ts';

/** Blocks that the index has room for from the start: it grows. */
const blocks = 4_096;
/** Blocks remembered when nobody holds them any more, to say why they were missed. */
const rememberedBlocks = 65_536;
/** Between two members of a group: a message, and rows in shared memory. */
const hopUs = 1_000;
/** Smallest chunk of a group. */
const stageTokensMin = 128;

/** Groups that compute prompts together, and the layers of the model. */
export interface TokenPipeline extends PipelineSettings {
  readonly layers: number;
}

export class TokenPlacement implements PromptModel<GenerationRequest> {
  readonly #hashKey: Uint32Array;
  #watch = new PrefillObserver([]);
  readonly #chains = new WeakMap<GenerationRequest, BlockChain>();
  #root: BlockRoot | undefined;
  #transfers: LearnedTransfers | undefined;
  #pipeline: TokenPipeline | undefined;

  /** @param hashKey the cluster's, which keys the identities of blocks */
  constructor(hashKey: Uint32Array) {
    this.#hashKey = hashKey;
  }

  /** The model is loaded: its blocks chain from `root`. @param kinds (instances): equal for those that compute alike @param transfers undefined: prefixes stay where they are */
  begin(root: BlockRoot, kinds: readonly number[], transfers?: LearnedTransfers, pipeline?: TokenPipeline): void {
    this.#root = root;
    this.#pipeline = pipeline;
    this.#transfers = transfers;
    this.#watch = new PrefillObserver(kinds);
  }

  /** There is another instance in the place of the one that was there. */
  replaced(instance: InstanceIndex): void {
    this.#watch.times[instance]?.forget();
  }

  /** (instances) */
  get prefills(): readonly PrefillPredictor[] {
    return this.#watch.times;
  }

  get config(): PlacerConfig<GenerationRequest> {
    return {
      kind: 'cache-aware',
      seed: [0, 0],
      balancingThreshold: 1,
      blockTokens: pageTokens,
      prompts: this,
      predictors: this.#watch.times,
      transfers: this.#transfers?.config,
      ssds: this.#transfers?.ssds,
      // Those between whom pages move have steps that wait for them.
      aheadRows: this.#transfers && batchLimits.tokensMax,
      pipeline: this.#pipeline && {
        ...this.#pipeline,
        prefills: this.#groupPrefills(this.#pipeline),
      },
      blocks,
      rememberedBlocks,
    };
  }

  /** (instances): those that share what was learned share these. */
  #groupPrefills({ layers }: TokenPipeline): readonly PipelinedPrefill[] {
    const { tokensMax, stepUsPrefill } = batchLimits;
    return this.#watch.times.map((times) => {
      const predictStageUs: StageTimes = ({ rows }, range) =>
        (times.prefillUs(rows, 0) * layersOf(layers, range)) / layers;
      return new PipelinedPrefill({
        ...{ steps: { predictStageUs }, layers, hopUs: () => hopUs },
        ...{ chunkTokensMax: tokensMax, chunkTokensMin: stageTokensMin, othersUs: stepUsPrefill },
      });
    });
  }

  forwarded(instance: InstanceIndex, { id, prompt }: GenerationRequest): void {
    this.#watch.forwarded(instance, id, prompt.length);
  }

  received(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    this.#watch.received(nowUs, instance, id, event);
  }

  /** All of its prompt is computed. */
  prefilled(nowUs: number, id: RequestId): void {
    this.#watch.prefilled(nowUs, id);
  }

  /** Prompts whose prefills are watched. */
  get observed(): number {
    return this.#watch.size;
  }

  /** Its prefill is of no interest any more. */
  forget(id: RequestId): void {
    this.#watch.forget(id);
  }

  chainOf(request: GenerationRequest): BlockChain {
    const known = this.#chains.get(request);
    if (known !== undefined) return known;
    if (this.#root === undefined) throw new Error('Cannot place request: the model is not loaded');
    const { chain } = new TokenContent(request.prompt, rootDigest(this.#root, request.salt, this.#hashKey));
    this.#chains.set(request, chain);
    return chain;
  }

  /** One instance computes a prompt with log-probabilities, or with earlier output. */
  mayPipeline({ sampling, resumed }: GenerationRequest): boolean {
    return !sampling.promptLogprobs && (resumed?.tokens.length ?? 0) === 0;
  }
}

type StageTimes = PipelineTimes['steps']['predictStageUs'];
