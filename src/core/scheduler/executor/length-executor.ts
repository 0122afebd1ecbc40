// The executor of a simulated instance: requests are lengths and block digests.

import type { SparsePlan } from '../../kvcache/sparsity/sparse-plan.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { RequestSize } from '../../protocol/request-size.ts';
import { Sequence, type SequenceContent } from '../batching/sequence.ts';
import type { Emit, Executor, ResultRows, RunningRequest, StepRun } from './executor.ts';
import type { GrowingChain, LengthRequest } from './length-request.ts';

class LengthContent implements SequenceContent {
  readonly request: LengthRequest;
  readonly chain: BlockChain;
  /** Undefined: output blocks have no digests to share. */
  readonly #growing: GrowingChain | undefined;

  /** @param sharesOutput all blocks are computed here, and the output blocks have digests */
  constructor(request: LengthRequest, chain: BlockChain, sharesOutput: boolean) {
    this.request = request;
    this.#growing = sharesOutput ? request.growingChain() : undefined;
    this.chain = this.#growing ?? chain;
  }

  get length(): number {
    return this.request.inputTokens + this.request.outputs;
  }

  digest(length: number): void {
    this.#growing?.grow(length);
  }
}

export class RunningLengths implements RunningRequest {
  readonly id: RequestId;
  readonly request: LengthRequest;
  readonly sequence: Sequence;
  readonly tbtUsMax: number;
  started = false;
  cancelled = false;
  reportedOutputs = 0;
  received: RunningRequest['received'];
  relay: RunningRequest['relay'];
  readonly #earlierPreemptions: number;

  /** @param sparse undefined: the request keeps all tokens */
  constructor(
    request: LengthRequest,
    { arrival, priority }: { readonly arrival: number; readonly priority: number },
    chain: BlockChain,
    sparse: SparsePlan | undefined,
  ) {
    const sharesOutput = request.trace.outputBlocks !== undefined && chain === request.chain;
    this.id = request.id;
    this.request = request;
    this.#earlierPreemptions = request.preemptions;
    this.tbtUsMax = request.slo?.tbtUs ?? Number.POSITIVE_INFINITY;
    this.sequence = new Sequence({
      content: new LengthContent(request, chain, sharesOutput),
      promptLength: request.trace.inputTokens,
      lengthMax: request.inputTokens + request.outputTokens,
      groups: sparse?.groups ?? 1,
      priority,
      background: request.trace.batch ?? false,
      tenant: request.trace.tenant,
      arrival,
      samples: true,
      ...sparse?.budgetedKv(request.trace.kvBudget, request.trace.inputTokens),
    });
  }

  /** Those at earlier instances, and those of its sequence here. */
  get preemptions(): number {
    return this.#earlierPreemptions + this.sequence.preemptions;
  }
}

/** Places in the plan of requests whose blocks did not arrive. A step has no other result than its time. */
export type LengthResult = { readonly failedSequences: readonly number[] } | undefined;

interface LengthExecutorConfig {
  readonly coalesce: boolean;
  readonly reportsAll: boolean;
  /** All requests are of one priority. */
  readonly ignoresPriorities: boolean;
  /** Requests arrive with the KV of their prompts, but for the last token. */
  readonly decodeOnly: boolean;
  /** Undefined: requests keep all tokens. */
  readonly sparse?: SparsePlan | undefined;
}

export class LengthExecutor implements Executor<LengthRequest, RunningLengths, undefined, LengthResult> {
  /** Equal steps run at once: the trace determines when a request ends. */
  readonly #coalesce: boolean;
  readonly #reportsAll: boolean;
  readonly #ignoresPriorities: boolean;
  readonly #decodeOnly: boolean;
  readonly #sparse: SparsePlan | undefined;

  constructor({ coalesce, reportsAll, ignoresPriorities, decodeOnly, sparse }: LengthExecutorConfig) {
    this.#sparse = sparse;
    this.#coalesce = coalesce;
    this.#reportsAll = reportsAll;
    this.#ignoresPriorities = ignoresPriorities;
    this.#decodeOnly = decodeOnly;
  }

  size({ size }: LengthRequest): RequestSize {
    return size;
  }

  create(request: LengthRequest, arrival: number): RunningLengths {
    return this.#decodeOnly
      ? this.resume(request, arrival, [], false)
      : new RunningLengths(request, this.#rank(request, arrival), request.chain, this.#sparse);
  }

  /** Prefixes are cached where prompts are computed: received blocks have no digests, unless no other instance has all of them. */
  resume(request: LengthRequest, arrival: number, _held: readonly GenerationEvent[], inParts: boolean): RunningLengths {
    const running = new RunningLengths(
      request,
      this.#rank(request, arrival),
      inParts ? request.chain : noBlocks,
      this.#sparse,
    );
    running.sequence.receivedTokens = request.inputTokens + request.outputs - 1;
    // Received blocks are no cache hit.
    running.sequence.cachedTokens = 0;
    return running;
  }

  #rank({ trace }: LengthRequest, arrival: number) {
    return { arrival, priority: this.#ignoresPriorities ? 0 : (trace.priority ?? 0) };
  }

  requestOf({ request }: RunningLengths): LengthRequest {
    return request;
  }

  firstTokenDelivered({ request }: RunningLengths, nowUs: number): void {
    request.deliveredAt(nowUs);
  }

  rechecks(): boolean {
    return true;
  }

  priorityOf({ trace }: LengthRequest): number {
    if (trace.batch === true) return Number.NEGATIVE_INFINITY;
    return this.#ignoresPriorities ? 0 : (trace.priority ?? 0);
  }

  tbtUsMax({ slo }: LengthRequest): number {
    return slo?.tbtUs ?? Number.POSITIVE_INFINITY;
  }

  plan(): undefined {
    return undefined;
  }

  sequenceFailed(result: LengthResult, place: number): boolean {
    return result?.failedSequences.includes(place) === true;
  }

  lacksMask(): boolean {
    return false;
  }

  failure(): undefined {
    return undefined;
  }

  commit(
    running: RunningLengths,
    _result: undefined,
    { samples }: ResultRows,
    run: StepRun,
    emit: Emit,
  ): 'length' | undefined {
    if (!samples) return undefined;
    const { request, sequence } = running;
    request.preemptions = running.preemptions;
    if (!request.reported || this.#reportsAll) {
      request.reported = true;
      if (request.outputs === 0) request.cachedTokens = sequence.cachedTokens ?? 0;
      emit(request.id, { kind: 'tokens', tokens: anyToken, logprobs: undefined, at: request.outputs });
    }
    request.grow(run);
    return request.outputs === request.outputTokens ? 'length' : undefined;
  }

  growthMax({ request }: RunningLengths): number {
    // The first token is reported when it is computed: its step is no part of a step run.
    return this.#coalesce && request.reported ? request.outputTokens - request.outputs : 1;
  }
}

const noBlocks: BlockChain = { blocks: 0, words: new Uint32Array(0) };

/** Stands for the first token: simulated tokens have no values. */
const anyToken = new Int32Array(1);
