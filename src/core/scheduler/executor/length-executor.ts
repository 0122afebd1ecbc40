// The work of an instance without an engine, for simulators: lengths and block names where an engine's has token ids.

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
  /** Undefined: outputs have no names that anybody could share. */
  readonly #growing: GrowingChain | undefined;

  /** @param named it computes all of its blocks, and those of its output are known */
  constructor(request: LengthRequest, chain: BlockChain, named: boolean) {
    this.request = request;
    this.#growing = named ? request.growingChain() : undefined;
    this.chain = this.#growing ?? chain;
  }

  get length(): number {
    return this.request.inputTokens + this.request.outputs;
  }

  digest(length: number): void {
    this.#growing?.grow(length);
  }
}

export class ServedLengths implements RunningRequest {
  readonly id: RequestId;
  readonly request: LengthRequest;
  readonly sequence: Sequence;
  readonly tbtUsMax: number;
  started = false;
  cancelled = false;
  reportedOutputs = 0;
  received: RunningRequest['received'];
  relay: RunningRequest['relay'];

  constructor(request: LengthRequest, arrival: number, chain: BlockChain) {
    const named = request.trace.outputBlocks !== undefined && chain === request.chain;
    this.id = request.id;
    this.request = request;
    this.tbtUsMax = request.slo?.tbtUs ?? Number.POSITIVE_INFINITY;
    this.sequence = new Sequence({
      content: new LengthContent(request, chain, named),
      promptLength: request.trace.inputTokens,
      lengthMax: request.inputTokens + request.outputTokens,
      groups: 1,
      priority: request.trace.priority ?? 0,
      background: request.trace.batch ?? false,
      tenant: request.trace.tenant,
      arrival,
      samples: true,
      scoresPrompt: false,
    });
  }
}

/** Nothing goes to an executor but the step's shape, and nothing comes back but its times. */
/** Places of requests whose blocks did not come. */
export type LengthResult = { readonly unanswered: readonly number[] } | undefined;

export class LengthExecutor implements Executor<LengthRequest, ServedLengths, undefined, LengthResult> {
  /** With it, equal steps run in one go: a request ends when its output is as long as the trace says. */
  readonly #coalesce: boolean;
  readonly #tellsAll: boolean;

  constructor({ coalesce, tellsAll }: { readonly coalesce: boolean; readonly tellsAll: boolean }) {
    this.#coalesce = coalesce;
    this.#tellsAll = tellsAll;
  }

  size({ size }: LengthRequest): RequestSize {
    return size;
  }

  serve(request: LengthRequest, arrival: number): ServedLengths {
    return new ServedLengths(request, arrival, request.chain);
  }

  /** The prefix cache is where prompts are computed: what has landed is nobody else's, unless no other instance has the whole of it. */
  resume(request: LengthRequest, arrival: number, _held: readonly GenerationEvent[], whole: boolean): ServedLengths {
    const served = new ServedLengths(request, arrival, whole ? request.chain : noBlocks);
    served.sequence.receivedTokens = request.inputTokens + request.outputs - 1;
    // What it finds of itself here is no hit: it came over the network.
    served.sequence.cachedTokens = 0;
    return served;
  }

  requestOf({ request }: ServedLengths): LengthRequest {
    return request;
  }

  joined({ request }: ServedLengths, nowUs: number): void {
    request.joinedAt(nowUs);
  }

  tbtUsMax({ slo }: LengthRequest): number {
    return slo?.tbtUs ?? Number.POSITIVE_INFINITY;
  }

  plan(): undefined {
    return undefined;
  }

  isUnanswered(result: LengthResult, place: number): boolean {
    return result?.unanswered.includes(place) === true;
  }

  failed(): boolean {
    return false;
  }

  commit(
    { request, sequence }: ServedLengths,
    _result: undefined,
    { samples }: ResultRows,
    run: StepRun,
    emit: Emit,
  ): 'length' | undefined {
    if (!samples) return undefined;
    if (!request.heard || this.#tellsAll) {
      request.heard = true;
      if (request.outputs === 0) request.cachedTokens = sequence.cachedTokens ?? 0;
      emit(request.id, { kind: 'tokens', tokens: anyToken, logprobs: undefined, at: request.outputs });
    }
    request.grow(run);
    return request.outputs === request.outputTokens ? 'length' : undefined;
  }

  growthMax({ request }: ServedLengths): number {
    // Others hear of a first token when it comes: no step follows it unheard.
    return this.#coalesce && request.heard ? request.outputTokens - request.outputs : 1;
  }
}

const noBlocks: BlockChain = { blocks: 0, words: new Uint32Array(0) };

/** Says that prefill is over; what the token is, nobody knows. */
const anyToken = new Int32Array(1);
