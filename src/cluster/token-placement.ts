// What the conductor of token instances places by: blocks that they tell of, and prefill times as they turn out.
import { TokenContent } from '../policy/batching/token-content.ts';
import type { BlockChain } from '../policy/blocks/block-chain.ts';
import { type BlockRoot, rootDigest } from '../policy/blocks/block-hash.ts';
import type { PrefillPredictor } from '../policy/cost/prefill.ts';
import type { TransferConfig } from '../policy/placement/transfer-times.ts';
import { pageTokens } from '../util/step.ts';
import type { InstanceIndex } from './messages.ts';
import type { PlacerConfig } from './placer.ts';
import type { GenerationEvent, GenerationRequest, RequestId } from './ports.ts';
import { PrefillWatch } from './prefill-watch.ts';

/** Blocks that the index has room for from the start: it grows. */
const blocks = 4_096;
/** Blocks remembered when nobody holds them any more, to say why they were missed. */
const rememberedBlocks = 65_536;
export class TokenPlacement {
  readonly #hashKey: Uint32Array;
  #watch = new PrefillWatch([]);
  readonly #chains = new WeakMap<GenerationRequest, BlockChain>();
  #root: BlockRoot | undefined;
  #transfers: TransferConfig | undefined;

  /** @param hashKey the cluster's, which keys the identities of blocks */
  constructor(hashKey: Uint32Array) {
    this.#hashKey = hashKey;
  }

  /** The model is loaded: its blocks chain from `root`. @param kinds (instances): equal for those that compute alike @param transfers undefined: prefixes stay where they are */
  begin(root: BlockRoot, kinds: readonly number[], transfers?: TransferConfig): void {
    this.#root = root;
    this.#transfers = transfers;
    this.#watch = new PrefillWatch(kinds);
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
      chainOf: (request) => this.#chainOf(request),
      predictors: this.#watch.times,
      transfers: this.#transfers,
      blocks,
      rememberedBlocks,
    };
  }

  forwarded(instance: InstanceIndex, { id, prompt }: GenerationRequest): void {
    this.#watch.forwarded(instance, id, prompt.length);
  }

  heard(nowUs: number, id: RequestId, event: GenerationEvent): void {
    this.#watch.heard(nowUs, id, event);
  }

  /** All of its prompt is computed. */
  prefilled(nowUs: number, id: RequestId): void {
    this.#watch.prefilled(nowUs, id);
  }

  /** Its prefill is of no interest any more. */
  left(id: RequestId): void {
    this.#watch.left(id);
  }

  #chainOf(request: GenerationRequest): BlockChain {
    const known = this.#chains.get(request);
    if (known !== undefined) return known;
    if (this.#root === undefined) throw new Error('Cannot place request: the model is not loaded');
    const { chain } = new TokenContent(request.prompt, rootDigest(this.#root, request.salt, this.#hashKey));
    this.#chains.set(request, chain);
    return chain;
  }
}
