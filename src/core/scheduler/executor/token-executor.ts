// The executor of an instance with an engine: plans engine steps from token ids, and turns results into tokens and log-probabilities.

import { type LayerGroup, rowFailures, type Step, type StepResult, topLogprobsMax } from '../../../util/step.ts';
import { type BlockRoot, rootDigest } from '../../kvcache/block-hash.ts';
import type { SparsePlan } from '../../kvcache/sparsity/sparse-plan.ts';
import type { GenerationEvent, GenerationRequest, TokenLogprobs } from '../../protocol/ports.ts';
import { kvBudgetOf, type RequestSize, sizeOf } from '../../protocol/request-size.ts';
import type { LayerRange } from '../../protocol/step-shape.ts';
import type { Emit, Executor, ResultRows, RowFailure, StepRun } from './executor.ts';
import { RunningGeneration } from './generation-request.ts';
import type { StepBuilder } from './step-builder.ts';

export interface TokenExecutorConfig {
  readonly groups: readonly LayerGroup[];
  readonly root: BlockRoot;
  /** Four words, the same at all instances that exchange blocks. */
  readonly hashKey: Uint32Array;
  /** The model is an encoder: one step computes a whole prompt. */
  readonly encodes?: boolean | undefined;
}

export class TokenExecutor implements Executor<GenerationRequest, RunningGeneration, Step, StepResult> {
  readonly #config: TokenExecutorConfig;
  readonly #builder: StepBuilder;
  readonly #sparse: SparsePlan | undefined;

  /** @param sparse undefined: every request keeps all tokens */
  constructor(config: TokenExecutorConfig, builder: StepBuilder, sparse?: SparsePlan) {
    this.#sparse = sparse;
    this.#config = config;
    this.#builder = builder;
  }

  size(request: GenerationRequest): RequestSize {
    return sizeOf(request);
  }

  create(request: GenerationRequest, arrival: number): RunningGeneration {
    const root = rootDigest(this.#config.root, request.salt, this.#config.hashKey);
    const budgeted = this.#sparse?.budgetedKv(kvBudgetOf(request), request.prompt.length);
    const { groups, encodes = false } = this.#config;
    return new RunningGeneration(request, root, arrival, { groups: groups.length, isWhole: encodes }, budgeted);
  }

  resume(request: GenerationRequest, arrival: number, firstEvents: readonly GenerationEvent[]): RunningGeneration {
    const running = this.create(request, arrival);
    for (const event of firstEvents) {
      if (event.kind === 'tokens') for (const token of event.tokens) running.append(token);
    }
    const { sequence } = running;
    sequence.receivedTokens = running.content.length - 1;
    // The log-probabilities of the prompt are reported where it was computed.
    sequence.scored = Math.max(0, sequence.promptLength - 1);
    return running;
  }

  requestOf({ request }: RunningGeneration): GenerationRequest {
    return request;
  }

  firstTokenDelivered(): void {}

  rechecks({ rechecks }: GenerationRequest): boolean {
    return rechecks === true;
  }

  priorityOf({ priority, batch }: GenerationRequest): number {
    return batch === true ? Number.NEGATIVE_INFINITY : priority;
  }

  tbtUsMax({ tbtUsMax = Number.POSITIVE_INFINITY }: GenerationRequest): number {
    return tbtUsMax;
  }

  plan(requests: readonly RunningGeneration[], range?: LayerRange): Step {
    return this.#builder.build(requests, range);
  }

  sequenceFailed({ failedSequences }: StepResult, place: number): boolean {
    return failedSequences.includes(place);
  }

  lacksMask({ unmaskedSequences }: StepResult, place: number): boolean {
    return unmaskedSequences?.includes(place) === true;
  }

  failure({ failed, hidden }: StepResult, { row, scored, samples }: ResultRows): RowFailure | undefined {
    const end = row + scored + Number(samples);
    if (hidden !== undefined && !hiddenOf(hidden, failed.length, row, scored).every(Number.isFinite))
      return 'notFinite';
    const rows = failed.subarray(row, end);
    if (rows.includes(rowFailures.notFinite)) return 'notFinite';
    return rows.includes(rowFailures.noToken) ? 'noToken' : undefined;
  }

  commit(
    running: RunningGeneration,
    result: StepResult,
    { row, scored, samples }: ResultRows,
    _run: StepRun,
    emit: Emit,
  ): 'stop' | 'length' | undefined {
    const { sequence } = running;
    const width = running.request.sampling.topLogprobs;
    if (running.request.pooling !== undefined) return this.#commitHidden(running, result, row, scored, emit);
    if (scored > 0) {
      sequence.scored = Math.min(sequence.computed, sequence.scoredTo);
      emit(running.id, { kind: 'prompt-logprobs', logprobs: logprobsOf(result, row, scored, width ?? 0) });
    }
    if (!samples) return !sequence.samples && sequence.remaining === 0 ? 'length' : undefined;
    const last = row + scored;
    const token = result.tokens[last];
    const reason = running.append(token);
    const logprobs = width === undefined ? undefined : logprobsOf(result, last, 1, width);
    emit(running.id, { kind: 'tokens', tokens: Int32Array.of(token), logprobs });
    return reason;
  }

  #commitHidden(
    running: RunningGeneration,
    { hidden, failed }: StepResult,
    row: number,
    scored: number,
    emit: Emit,
  ): 'length' | undefined {
    const { sequence } = running;
    if (scored > 0 && hidden !== undefined) {
      running.pool(hiddenOf(hidden, failed.length, row, scored), hidden.length / failed.length);
      sequence.scored = Math.min(sequence.computed, sequence.scoredTo);
    }
    if (sequence.remaining > 0) return undefined;
    emit(running.id, { kind: 'embedding', values: running.embedding });
    return 'length';
  }

  growthMax(): number {
    return 1;
  }
}

/** The hidden states of `count` rows from `from` on, as a view. @param rows of the whole result */
function hiddenOf(hidden: Float32Array, rows: number, from: number, count: number): Float32Array {
  const columns = hidden.length / rows;
  return hidden.subarray(from * columns, (from + count) * columns);
}

/** The log-probabilities of rows `from..from+count`, copied, with `width` alternatives each. */
function logprobsOf(result: StepResult, from: number, count: number, width: number): TokenLogprobs {
  const topTokens = new Int32Array(count * width);
  const topLogprobs = new Float32Array(count * width);
  for (let i = 0; i < count; i++) {
    const at = (from + i) * topLogprobsMax;
    topTokens.set(result.topTokens.subarray(at, at + width), i * width);
    topLogprobs.set(result.topLogprobs.subarray(at, at + width), i * width);
  }
  return { logprobs: result.logprobs.slice(from, from + count), width, topTokens, topLogprobs };
}
