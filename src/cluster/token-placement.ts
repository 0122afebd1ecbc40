// What the conductor of token instances places by: blocks that they tell of, and prefill times as they turn out.
import { TokenContent } from '../policy/batching/token-content.ts';
import type { BlockChain } from '../policy/blocks/block-chain.ts';
import { type BlockRoot, rootDigest } from '../policy/blocks/block-hash.ts';
import type { PrefillPredictor } from '../policy/cost/prefill.ts';
import { pageTokens } from '../util/step.ts';
import type { InstanceIndex } from './messages.ts';
import type { PlacerConfig } from './placer.ts';
import type { GenerationEvent, GenerationRequest, RequestId } from './ports.ts';

/** Blocks that the index has room for from the start: it grows. */
const blocks = 4_096;
/** Blocks remembered when nobody holds them any more, to say why they were missed. */
const rememberedBlocks = 65_536;
/** A guess until the first prefill has ended. */
const usPerTokenGuess = 200;
/** Weight of the latest prefill. */
const newest = 0.2;

/** Time from a prompt's start to its first token goes by the tokens that had to be computed, as lately; of who has computed none, as with the others. */
class PrefillTimes implements PrefillPredictor {
  readonly #all: readonly PrefillTimes[];
  usPerToken: number | undefined;

  constructor(all: readonly PrefillTimes[]) {
    this.#all = all;
  }

  prefillUs(tokens: number, cachedTokens: number): number {
    return Math.max(1, tokens - cachedTokens) * (this.usPerToken ?? this.#mean());
  }

  observe(computedTokens: number, us: number): void {
    this.usPerToken ??= this.#mean();
    this.usPerToken += newest * (us / Math.max(1, computedTokens) - this.usPerToken);
  }

  #mean(): number {
    const learned = this.#all.flatMap(({ usPerToken = [] }) => usPerToken);
    return learned.length === 0 ? usPerTokenGuess : learned.reduce((sum, us) => sum + us, 0) / learned.length;
  }
}

interface Prompt {
  readonly instance: InstanceIndex;
  readonly tokens: number;
  computed: number;
  startedUs: number | undefined;
}

export class TokenPlacement {
  readonly #hashKey: Uint32Array;
  /** (instances): those that are alike share one. */
  #times: readonly PrefillTimes[] = [];
  readonly #chains = new WeakMap<GenerationRequest, BlockChain>();
  /** Prompts that are forwarded and have no first token yet. */
  readonly #prompts = new Map<RequestId, Prompt>();
  #root: BlockRoot | undefined;

  /** @param hashKey the cluster's, which keys the identities of blocks */
  constructor(hashKey: Uint32Array) {
    this.#hashKey = hashKey;
  }

  /** The model is loaded: its blocks chain from `root`. @param kinds (instances): equal for those that compute alike */
  begin(root: BlockRoot, kinds: readonly number[]): void {
    this.#root = root;
    const all: PrefillTimes[] = [];
    const times = new Map<number, PrefillTimes>();
    for (const kind of kinds) if (!times.has(kind)) times.set(kind, new PrefillTimes(all));
    all.push(...times.values());
    this.#times = kinds.map((kind) => times.get(kind) ?? new PrefillTimes(all));
  }

  /** There is another instance in the place of the one that was there. */
  replaced(instance: InstanceIndex): void {
    const times = this.#times[instance];
    if (times !== undefined) times.usPerToken = undefined;
  }

  /** (instances) */
  get prefills(): readonly PrefillPredictor[] {
    return this.#times;
  }

  get config(): PlacerConfig<GenerationRequest> {
    return {
      kind: 'cache-aware',
      seed: [0, 0],
      balancingThreshold: 1,
      blockTokens: pageTokens,
      chainOf: (request) => this.#chainOf(request),
      predictors: this.#times,
      transfers: undefined,
      blocks,
      rememberedBlocks,
    };
  }

  forwarded(instance: InstanceIndex, { id, prompt }: GenerationRequest): void {
    this.#prompts.set(id, { instance, tokens: prompt.length, computed: prompt.length, startedUs: undefined });
  }

  heard(nowUs: number, id: RequestId, event: GenerationEvent): void {
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    if (event.kind === 'started') {
      prompt.startedUs = nowUs;
      prompt.computed = prompt.tokens - event.cachedTokens;
    } else if (event.kind === 'tokens') {
      this.prefilled(nowUs, id);
    } else if (event.kind === 'finished' || event.kind === 'failed') {
      this.left(id);
    }
  }

  /** All of its prompt is computed. */
  prefilled(nowUs: number, id: RequestId): void {
    const prompt = this.#prompts.get(id);
    if (prompt?.startedUs !== undefined)
      this.#times[prompt.instance]?.observe(prompt.computed, nowUs - prompt.startedUs);
    this.left(id);
  }

  /** Its prefill is of no interest any more. */
  left(id: RequestId): void {
    this.#prompts.delete(id);
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
