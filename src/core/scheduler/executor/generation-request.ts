// A request at an instance with an engine: its tokens, and the state of sampling and stop conditions.

import { Int32List } from '../../../util/int32-list.ts';
import type { BudgetedKv } from '../../kvcache/sparsity/sparse-plan.ts';
import type { Grammar } from '../../protocol/grammar.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { GenerationRequest, ResumedFrom, SamplingParams } from '../../protocol/ports.ts';
import { type ScoredRange, Sequence } from '../batching/sequence.ts';
import { TokenContent } from '../batching/token-content.ts';
import type { RunningRequest } from './executor.ts';

/** The distinct tokens of a request, and their counts in its output. */
export class SeenTokens {
  readonly tokens = new Int32List();
  readonly counts = new Int32List();
  readonly #place = new Map<number, number>();

  constructor(prompt: Int32Array) {
    for (const token of prompt) this.#see(token);
  }

  addOutput(token: number): void {
    const place = this.#see(token);
    this.counts.set(place, this.counts.at(place) + 1);
  }

  #see(token: number): number {
    const known = this.#place.get(token);
    if (known !== undefined) return known;
    const place = this.tokens.length;
    this.#place.set(token, place);
    this.tokens.push(token);
    this.counts.push(0);
    return place;
  }
}

function hasPenalties(sampling: SamplingParams): boolean {
  return sampling.repetitionPenalty !== 1 || sampling.frequencyPenalty !== 0 || sampling.presencePenalty !== 0;
}

interface TokenBias {
  readonly tokens: Int32Array;
  readonly values: Float32Array;
}

/** Undefined: only the sampled rows yield results. */
function scoredRange({ prompt: { length }, sampling, pooling }: GenerationRequest): ScoredRange | undefined {
  if (pooling !== undefined) return { from: pooling === 'last' ? length - 1 : 0, to: pooling === 'cls' ? 1 : length };
  return sampling.promptLogprobs ? { from: 0, to: length - 1 } : undefined;
}

/** Finite, so that a sum with a logit stays a number. */
const forbidden = -1e30;

const biasOf = (bias: readonly (readonly [number, number])[]): TokenBias => ({
  tokens: Int32Array.from(bias, ([token]) => token),
  values: Float32Array.from(bias, ([, value]) => value),
});

/** A request from its submission to its last event. */
export class RunningGeneration implements RunningRequest {
  readonly request: GenerationRequest;
  readonly sequence: Sequence;
  readonly content: TokenContent;
  readonly #bias: TokenBias;
  /** The bias with stop tokens forbidden; undefined: the request has no minimum of tokens. */
  readonly #biasBeforeMin: TokenBias | undefined;
  /** Undefined: no penalty is set. */
  readonly seen: SeenTokens | undefined;
  readonly tbtUsMax: number;
  readonly #stops: ReadonlySet<number>;
  /** Sums of hidden states. */
  #pooled: Float64Array | undefined;
  started = false;
  cancelled = false;
  reportedOutputs = 0;
  received: RunningRequest['received'];
  relay: RunningRequest['relay'];

  /** @param groups layer groups of the model @param isWhole one step computes the prompt @param budgeted undefined: it keeps all tokens */
  constructor(
    request: GenerationRequest,
    root: Uint32Array,
    arrival: number,
    { groups, isWhole }: { readonly groups: number; readonly isWhole: boolean },
    budgeted?: BudgetedKv,
  ) {
    const { sampling } = request;
    this.request = request;
    this.tbtUsMax = request.tbtUsMax ?? Number.POSITIVE_INFINITY;
    this.content = new TokenContent(request.prompt, root);
    this.sequence = new Sequence({
      content: this.content,
      promptLength: request.prompt.length,
      // The last output token needs no keys and values.
      lengthMax: request.prompt.length + Math.max(1, request.maxTokens) - 1,
      groups,
      priority: request.priority,
      background: request.batch ?? false,
      tenant: request.tenant,
      arrival,
      samples: request.maxTokens > 0,
      scores: scoredRange(request),
      isWhole,
      ...budgeted,
    });
    this.#bias = biasOf(sampling.logitBias);
    const stops = request.stopTokenIds.map((token) => [token, forbidden] as const);
    const { minTokens = 0 } = request;
    this.#biasBeforeMin = minTokens > 0 ? biasOf([...sampling.logitBias, ...stops]) : undefined;
    this.seen = hasPenalties(sampling) ? new SeenTokens(request.prompt) : undefined;
    this.#stops = new Set(request.stopTokenIds);
    if (request.resumed !== undefined) this.#resumeFrom(request.resumed);
  }

  #resumeFrom({ tokens, scored }: ResumedFrom): void {
    for (const token of tokens) this.append(token);
    if (this.sequence.sparsity === undefined && this.sequence.pageChoice === undefined)
      this.content.digest(this.content.length);
    if (this.request.pooling === undefined) this.sequence.scored = scored;
  }

  get id(): RequestId {
    return this.request.id;
  }

  get grammar(): Grammar | undefined {
    return this.request.grammar;
  }

  /** Output tokens; valid until the next one is appended. */
  get output(): Int32Array {
    return this.content.tokens.view().subarray(this.sequence.promptLength);
  }

  /** Additions to logits for the next token. */
  get biasTokens(): Int32Array {
    return this.#nextBias.tokens;
  }

  get biasValues(): Float32Array {
    return this.#nextBias.values;
  }

  get #nextBias(): TokenBias {
    return this.outputs < (this.request.minTokens ?? 0) ? (this.#biasBeforeMin ?? this.#bias) : this.#bias;
  }

  /** Adds the hidden states of prompt rows to the embedding. */
  pool(rows: Float32Array, columns: number): void {
    this.#pooled ??= new Float64Array(columns);
    for (let at = 0; at < rows.length; at += columns)
      for (let i = 0; i < columns; i++) this.#pooled[i] = this.#pooled[i] + rows[at + i];
  }

  /** The pooled hidden states of the scored rows. */
  get embedding(): Float32Array {
    const { pooling, prompt } = this.request;
    const rows = pooling === 'mean' ? prompt.length : 1;
    return Float32Array.from(this.#pooled ?? [], (sum) => sum / rows);
  }

  /** Tokens of output so far. */
  get outputs(): number {
    return this.content.length - this.sequence.promptLength;
  }

  /** Appends a sampled token. Returns why it is the last one; undefined: it is not. */
  append(token: number): 'stop' | 'length' | undefined {
    this.content.tokens.push(token);
    this.seen?.addOutput(token);
    if (this.#stops.has(token)) return 'stop';
    return this.outputs === this.request.maxTokens ? 'length' : undefined;
  }
}
