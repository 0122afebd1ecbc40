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

/** Tokens of several streams that arrive within this time, or this share of the step's own, are of one step. */
const [sameStepUs, sameStepShare] = [2_000, 1 / 8];
/** A step with rows of a prompt takes at least this share of the longest one. */
const chunkShare = 1 / 2;
/** Steps that wait for the first token of a prompt. */
const heldMax = 256;

/**
 * An engine does not announce its steps. Each stream has a token a step, so that tokens that arrive together end one; it
 * began when the step before it ended, or with the first request. The rows of a prompt are spread by time over the long
 * steps since it was forwarded and no earlier prompt was computed.
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

  /** The first tokens of a request have arrived that another engine has prefilled: its rows begin with the next ones. */
  handedOff(nowUs: number, id: RequestId, promptTokens: number, tokens: number): void {
    this.#streams.set(id, { forwardedUs: nowUs, promptTokens, cachedTokens: promptTokens, outputs: tokens });
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
    if (open !== undefined && !open.single.has(id)) {
      const { startedUs, endedUs } = open;
      if (nowUs - endedUs < Math.max(sameStepUs, (endedUs - startedUs) * sameStepShare)) return open;
    }
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
    for (const step of stepsOf(open)) this.#held.push(step);
    for (const [id, stream] of open.prompts) this.#spread(id, stream);
    if (open.prompts.length > 0) this.#promptUs = open.endedUs;
    const isPromptPending = [...this.#streams.values()].some(({ outputs }) => outputs === 0);
    if (open.prompts.length > 0 || !isPromptPending || this.#held.length >= heldMax) this.#release();
  }

  /** Adds the rows of a prompt. Steps without them are much shorter. */
  #spread(id: RequestId, { forwardedUs, promptTokens, cachedTokens }: Stream): void {
    const cached = Math.min(cachedTokens, promptTokens - 1);
    const sinceUs = Math.max(forwardedUs, this.#promptUs);
    const last = this.#held[this.#held.length - 1];
    const since = this.#held.filter((step) => step === last || step.startedUs >= sinceUs);
    const longestUs = since.reduce((most, step) => Math.max(most, durationOf(step)), 0);
    const steps = since.filter((step) => durationOf(step) >= longestUs * chunkShare);
    const totalUs = steps.reduce((sum, step) => sum + durationOf(step), 0);
    let [passedUs, from] = [0, cached];
    for (const step of steps) {
      passedUs += durationOf(step);
      const share = passedUs === totalUs ? 1 : passedUs / totalUs;
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

function durationOf({ startedUs, endedUs }: EngineStep): number {
  return endedUs - startedUs;
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
    rows: lists.flatMap((rows) => rows.slice(i - count, i - count + 1 || undefined)),
  }));
}
