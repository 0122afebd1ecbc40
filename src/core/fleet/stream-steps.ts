// The steps of an external engine as its streams show them: which rows it computed, from when until when.
import type { RequestId } from '../protocol/ids.ts';

/** A step, by the clock of the caller. */
export interface EngineStep {
  readonly startedUs: number;
  readonly endedUs: number;
  /** Of each request: tokens before the first row, and rows. */
  readonly rows: readonly EngineRows[];
}

export type EngineRows = readonly [id: RequestId, from: number, rows: number];

interface Stream {
  readonly forwardedUs: number;
  readonly promptTokens: number;
  cachedTokens: number;
  /** Tokens that have arrived. */
  outputs: number;
}

/** A step whose tokens arrive. */
interface OpenStep {
  readonly startedUs: number;
  readonly endedUs: number;
  /** Single rows of each request, in order. */
  readonly single: Map<RequestId, readonly EngineRows[]>;
  /** Prompts whose first token has arrived. */
  readonly prompts: (readonly [id: RequestId, stream: Stream])[];
}

type HeldStep = EngineStep & { readonly rows: EngineRows[] };

/** Tokens of several streams that arrive within this time are of one step. */
const sameStepUs = 2_000;
/** Steps that wait for the first token of a prompt. */
const heldMax = 256;

/**
 * An engine does not announce its steps. Each stream has a token a step, so that tokens that arrive together end one; it
 * began when the step before it ended, or with the first request. The rows of a prompt are spread by time over the steps
 * since it was forwarded and no earlier prompt was computed.
 */
export class StreamSteps {
  readonly #streams = new Map<RequestId, Stream>();
  #open: OpenStep | undefined;
  /** Steps beside which a prompt was computed, perhaps. */
  #held: HeldStep[] = [];
  #ended: EngineStep[] = [];
  #endedUs = Number.NEGATIVE_INFINITY;
  /** End of the last step that completed a prompt. */
  #promptUs = Number.NEGATIVE_INFINITY;

  /** @param cachedTokens of the prompt, whose keys and values the engine has */
  forwarded(nowUs: number, id: RequestId, promptTokens: number, cachedTokens: number): void {
    this.#streams.set(id, { forwardedUs: nowUs, promptTokens, cachedTokens, outputs: 0 });
  }

  /** The engine states the cached tokens of the prompt. */
  started(id: RequestId, cachedTokens: number): void {
    const stream = this.#streams.get(id);
    if (stream !== undefined) stream.cachedTokens = Math.max(stream.cachedTokens, cachedTokens);
  }

  received(nowUs: number, id: RequestId, tokens: number): void {
    const stream = this.#streams.get(id);
    if (stream === undefined || tokens === 0) return;
    const { outputs, promptTokens } = stream;
    const open = this.#openAt(nowUs, id);
    if (outputs === 0) open.prompts.push([id, stream]);
    stream.outputs += tokens;
    const first = Math.max(1, outputs);
    const single = Array.from({ length: stream.outputs - first }, (_, i): EngineRows => {
      return [id, promptTokens + first + i - 1, 1];
    });
    open.single.set(id, single);
  }

  /** No further token of the request arrives. */
  ended(id: RequestId): void {
    this.#streams.delete(id);
    if (this.#streams.size > 0) return;
    this.#close();
    this.#release();
  }

  /** The steps since the last call, in order. */
  take(): readonly EngineStep[] {
    const steps = this.#ended;
    if (steps.length > 0) this.#ended = [];
    return steps;
  }

  /** The step that a token which arrives now belongs to. */
  #openAt(nowUs: number, id: RequestId): OpenStep {
    const open = this.#open;
    if (open !== undefined && nowUs - open.endedUs < sameStepUs && !open.single.has(id)) return open;
    this.#close();
    let earliestUs = nowUs;
    for (const { forwardedUs } of this.#streams.values()) earliestUs = Math.min(earliestUs, forwardedUs);
    const opened = { startedUs: Math.max(earliestUs, this.#endedUs), endedUs: nowUs, single: new Map(), prompts: [] };
    this.#open = opened;
    return opened;
  }

  #close(): void {
    const open = this.#open;
    if (open === undefined) return;
    this.#open = undefined;
    this.#endedUs = open.endedUs;
    this.#held.push(...stepsOf(open));
    for (const [id, stream] of open.prompts) this.#spread(id, stream);
    if (open.prompts.length > 0) this.#promptUs = open.endedUs;
    const isPromptPending = [...this.#streams.values()].some(({ outputs }) => outputs === 0);
    if (open.prompts.length > 0 || !isPromptPending || this.#held.length >= heldMax) this.#release();
  }

  /** Adds the rows of a prompt, the last of them to the last step. */
  #spread(id: RequestId, { forwardedUs, promptTokens, cachedTokens }: Stream): void {
    const cached = Math.min(cachedTokens, promptTokens - 1);
    const sinceUs = Math.max(forwardedUs, this.#promptUs);
    const last = this.#held[this.#held.length - 1];
    const steps = this.#held.filter((step) => step === last || step.startedUs >= sinceUs);
    const totalUs = steps.reduce((sum, each) => sum + each.endedUs - each.startedUs, 0);
    let [passedUs, from] = [0, cached];
    for (const step of steps) {
      passedUs += step.endedUs - step.startedUs;
      const share = step === last ? 1 : passedUs / totalUs;
      const to = cached + Math.round((promptTokens - cached) * share);
      if (to > from) step.rows.push([id, from, to - from]);
      from = to;
    }
  }

  #release(): void {
    for (const step of this.#held) if (step.rows.length > 0) this.#ended.push(step);
    this.#held = [];
  }
}

/** Tokens that arrive at once are of as many steps, of equal time. */
function stepsOf({ startedUs, endedUs, single }: OpenStep): readonly HeldStep[] {
  const lists = [...single.values()];
  const count = lists.reduce((most, rows) => Math.max(most, rows.length), 1);
  const us = (endedUs - startedUs) / count;
  return Array.from({ length: count }, (_, i) => ({
    startedUs: Math.round(startedUs + i * us),
    endedUs: Math.round(startedUs + (i + 1) * us),
    // The last rows of all streams are of the last step.
    rows: lists.flatMap((rows) => rows.filter((_, row) => rows.length - row === count - i)),
  }));
}
