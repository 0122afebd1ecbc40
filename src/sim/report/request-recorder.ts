// One record for each request of a run: where it was placed, what it found in caches, and its times.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { PlacementTrace, PromptBlockCounts } from '../../core/protocol/request-trace.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { EndEvent, RequestListener } from '../engine/simulation-config.ts';
import { meanOfLongest } from './longest-gaps.ts';

/** Times in milliseconds; undefined where a request did not get so far. */
export interface RequestRecord {
  /** Position in the workload. */
  readonly index: number;
  readonly arrivalMs: number;
  readonly sloClass: string | undefined;
  readonly tenant: string | undefined;
  /** The session of the request, and its place in the session from 0. */
  readonly session: number | undefined;
  readonly turn: number | undefined;
  readonly priority: number;
  readonly batch: boolean;
  readonly promptTokens: number;
  readonly outputTokens: number;
  /** `completed`, the reason of a refusal, or `failed`. */
  readonly outcome: string;
  /** Refused, and sent again later. */
  readonly returns: boolean;
  /** Instances that computed the prompt and the output. */
  readonly instance: InstanceIndex | undefined;
  readonly decodeInstance: InstanceIndex | undefined;
  readonly attempts: number;
  readonly preemptions: number;
  /** Prompt tokens that came from a cache, and those fetched from another instance. */
  readonly cachedTokens: number;
  readonly fetchedFrom: InstanceIndex | undefined;
  readonly fetchedTokens: number;
  /** Blocks of the prompt by the lookup at its instance. */
  readonly hitBlocks: number | undefined;
  readonly neverSeenBlocks: number | undefined;
  readonly evictedBlocks: number | undefined;
  readonly elsewhereBlocks: number | undefined;
  readonly partialBlocks: number | undefined;
  /** From the arrival to the begin of the prefill. */
  readonly queueMs: number | undefined;
  readonly ttftMs: number | undefined;
  /** Mean of the longest gaps between tokens, as in the summary. */
  readonly tbtMs: number | undefined;
  /** Mean gap between tokens. */
  readonly tpotMs: number | undefined;
  readonly e2eMs: number;
  readonly predictedTtftMs: number | undefined;
  readonly predictedTbtMs: number | undefined;
}

interface Route {
  readonly attempts: number;
  readonly last: PlacementTrace;
}

/** When the client received the tokens of a request. */
interface Received {
  firstUs: number;
  lastUs: number;
  readonly gapUs: number[];
}

/**
 * Hands each record on at the end of its request; holds only requests that have not ended. Times are those at the client
 * if it received every token by itself, else those at the instances: they differ by the times of messages.
 */
export class RequestRecorder implements RequestListener {
  readonly #write: (record: RequestRecord) => void;
  readonly #routes = new Map<string, Route>();
  readonly #blocks = new Map<string, PromptBlockCounts>();
  readonly #received = new Map<string, Received>();

  constructor(write: (record: RequestRecord) => void) {
    this.#write = write;
  }

  placed(id: string, last: PlacementTrace): void {
    this.#routes.set(id, { attempts: (this.#routes.get(id)?.attempts ?? 0) + 1, last });
  }

  found(id: string, blocks: PromptBlockCounts): void {
    this.#blocks.set(id, { ...blocks });
  }

  received(id: string, nowUs: number, place: number): void {
    const known = this.#received.get(id);
    if (known === undefined) {
      if (place === 0) this.#received.set(id, { firstUs: nowUs, lastUs: nowUs, gapUs: [] });
    } else if (place === known.gapUs.length + 1) {
      known.gapUs.push(nowUs - known.lastUs);
      known.lastUs = nowUs;
    }
  }

  ended(id: string, nowUs: number, request: LengthRequest, event: EndEvent, returns: boolean): void {
    const { trace } = request;
    this.#write({
      index: trace.index,
      arrivalMs: trace.arrivalUs / 1000,
      sloClass: trace.sloClass,
      tenant: trace.tenant,
      session: trace.session,
      turn: trace.turn,
      priority: trace.priority ?? 0,
      batch: trace.batch ?? false,
      promptTokens: trace.inputTokens,
      outputTokens: request.outputs,
      outcome: event.kind === 'finished' ? 'completed' : (event.cause?.reason ?? 'failed'),
      returns,
      ...routeOf(this.#routes.get(id)),
      preemptions: request.preemptions,
      cachedTokens: request.cachedTokens,
      ...blocksOf(this.#blocks.get(id)),
      ...timesOf(nowUs, request, event, this.#received.get(id)),
    });
    this.#routes.delete(id);
    this.#blocks.delete(id);
    this.#received.delete(id);
  }
}

function routeOf(route: Route | undefined) {
  const placement = route?.last;
  return {
    instance: placement?.instance,
    decodeInstance: placement?.decodeAt ?? placement?.instance,
    attempts: route?.attempts ?? 0,
    fetchedFrom: placement?.fetchedFrom,
    fetchedTokens: placement?.fetchedTokens ?? 0,
  };
}

function blocksOf(blocks: PromptBlockCounts | undefined) {
  return {
    hitBlocks: blocks?.hits,
    neverSeenBlocks: blocks?.neverSeen,
    evictedBlocks: blocks?.evicted,
    elsewhereBlocks: blocks?.elsewhere,
    partialBlocks: blocks?.partial,
  };
}

function tokenTimesOf(
  { firstTokenUs, lastTokenUs, gapUs }: LengthRequest,
  gaps: number,
  received: Received | undefined,
): Pick<LengthRequest, 'firstTokenUs' | 'lastTokenUs' | 'gapUs'> {
  if (received === undefined || received.gapUs.length !== gaps) return { firstTokenUs, lastTokenUs, gapUs };
  const own = Float64Array.from(received.gapUs);
  return { firstTokenUs: received.firstUs, lastTokenUs: received.lastUs, gapUs: own };
}

function timesOf(nowUs: number, request: LengthRequest, { kind }: EndEvent, received: Received | undefined) {
  const { trace, startedUs, outputs, predicted } = request;
  const { arrivalUs } = trace;
  const gaps = Math.max(0, outputs - 1);
  const { firstTokenUs, lastTokenUs, gapUs } = tokenTimesOf(request, gaps, received);
  const endUs = kind === 'finished' ? lastTokenUs : nowUs;
  const msSinceArrival = (us: number | undefined) => (us === undefined ? undefined : (us - arrivalUs) / 1000);
  return {
    queueMs: msSinceArrival(startedUs),
    ttftMs: msSinceArrival(firstTokenUs),
    tbtMs: gaps === 0 ? undefined : Math.round(meanOfLongest(gapUs, gaps)) / 1000,
    tpotMs: gaps === 0 || firstTokenUs === undefined ? undefined : (lastTokenUs - firstTokenUs) / gaps / 1000,
    e2eMs: (endUs - arrivalUs) / 1000,
    predictedTtftMs: predicted && predicted.ttftUs / 1000,
    predictedTbtMs: predicted && predicted.tbtUs / 1000,
  };
}
