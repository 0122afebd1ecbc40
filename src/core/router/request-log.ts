// Keeps the traces of running requests, and of the last ended ones.

import { assertNever } from '../../util/assert-never.ts';
import { SlotMap } from '../../util/slot-map.ts';
import type { ConductorEffect } from '../protocol/effects.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent, GenerationRequest } from '../protocol/ports.ts';
import type {
  PlacementTrace,
  PromptBlockCounts,
  RequestState,
  RequestTrace,
  StepTrace,
} from '../protocol/request-trace.ts';
import { requestIdOf } from './attempts.ts';

/** A trace under construction. */
type Entry = { -readonly [K in keyof RequestTrace]: RequestTrace[K] } & {
  placements: PlacementTrace[];
  steps: StepTrace[];
  /** Time of the last event. */
  changedUs: number;
};

/** Steps recorded of a request. */
const stepsMax = 256;

/** Memory is bounded by the running requests and the last `endedMax` ended ones. */
export class RequestLog {
  readonly #endedMax: number;
  readonly #onEnded: (trace: RequestTrace) => void;
  readonly #live = new SlotMap<RequestId, Entry>();
  /** In the order in which they ended. */
  readonly #ended = new SlotMap<RequestId, Entry>();

  /** @param onEnded receives each complete trace once */
  constructor(endedMax: number, onEnded: (trace: RequestTrace) => void = () => {}) {
    this.#endedMax = endedMax;
    this.#onEnded = onEnded;
  }

  /** Undefined: unknown, or ended too long ago. */
  find(id: RequestId): RequestTrace | undefined {
    return this.#live.get(id) ?? this.#ended.get(id);
  }

  /** Traces with an event at `sinceUs` or later, at most `most`, the latest submissions first. */
  recent(sinceUs: number, most: number): readonly RequestTrace[] {
    const changed = [...this.#ended.values(), ...this.#live.values()].filter(({ changedUs }) => changedUs >= sinceUs);
    return changed.sort((a, b) => b.submittedUs - a.submittedUs).slice(0, most);
  }

  submitted(
    nowUs: number,
    { id, prompt, maxTokens, batch = false, priority, sloClass, trace, tenant }: GenerationRequest,
  ): void {
    this.#live.set(id, {
      id,
      batch,
      priority,
      sloClass,
      trace,
      tenant,
      maxTokens,
      promptTokens: prompt.length,
      outputTokens: 0,
      cachedTokens: undefined,
      state: 'queued',
      blocks: undefined,
      placements: [],
      steps: [],
      changedUs: nowUs,
      stepsOmitted: 0,
      submittedUs: nowUs,
      startedUs: undefined,
      prefilledUs: undefined,
      firstTokenUs: undefined,
      lastTokenUs: undefined,
      endedUs: undefined,
      end: undefined,
    });
  }

  /** Takes an effect of the conductor. */
  record(nowUs: number, effect: ConductorEffect): void {
    switch (effect.kind) {
      case 'placed':
        this.#changed(nowUs, effect.id)?.placements.push(effect.placement);
        break;
      case 'found':
        this.#found(nowUs, effect.id, effect.blocks);
        break;
      case 'emit':
        this.#emit(nowUs, effect.id, effect.event);
        break;
      case 'forward':
      case 'cancel':
      case 'pin':
      case 'unpin':
      case 'pinUpdated':
      case 'roleSwitched':
      case 'requestSnapshot':
      case 'ignored':
      case 'drained':
        break;
      default:
        assertNever(effect);
    }
  }

  prefilled(nowUs: number, id: RequestId): void {
    const entry = this.#changed(nowUs, id);
    if (entry !== undefined) entry.prefilledUs ??= nowUs;
  }

  /** The request had rows in a step. */
  addStep(id: RequestId, step: StepTrace): void {
    const entry = this.#live.get(requestIdOf(id));
    if (entry === undefined) return;
    if (entry.steps.length < stepsMax) entry.steps.push(step);
    else entry.stepsOmitted++;
  }

  cancelled(nowUs: number, id: RequestId): void {
    this.#end(nowUs, id, 'cancelled');
  }

  /** The entry of an attempt's request, which has an event now. */
  #changed(nowUs: number, id: RequestId): Entry | undefined {
    const entry = this.#live.get(requestIdOf(id));
    if (entry !== undefined) entry.changedUs = nowUs;
    return entry;
  }

  #found(nowUs: number, id: RequestId, blocks: PromptBlockCounts): void {
    const entry = this.#changed(nowUs, id);
    if (entry !== undefined) entry.blocks ??= blocks;
  }

  #emit(nowUs: number, id: RequestId, event: GenerationEvent): void {
    const entry = this.#live.get(id);
    if (entry === undefined) return;
    entry.changedUs = nowUs;
    switch (event.kind) {
      case 'started':
        entry.startedUs = entry.firstTokenUs ?? nowUs;
        entry.cachedTokens = event.cachedTokens;
        if (entry.firstTokenUs === undefined) entry.state = 'prefill';
        break;
      case 'tokens':
        entry.firstTokenUs ??= nowUs;
        entry.lastTokenUs = nowUs;
        entry.outputTokens += event.tokens.length;
        entry.state = 'decode';
        break;
      case 'finished':
        entry.end = event;
        this.#end(nowUs, id, 'finished');
        break;
      case 'failed': {
        const { kind, code, message, cause } = event;
        entry.end = { kind, code, message, cause };
        this.#end(nowUs, id, cause === undefined ? 'failed' : 'refused');
        break;
      }
      case 'accepted':
      case 'prompt-logprobs':
      case 'embedding':
        break;
      default:
        assertNever(event);
    }
  }

  #end(nowUs: number, id: RequestId, state: RequestState): void {
    const entry = this.#live.get(id);
    if (entry === undefined) return;
    this.#live.delete(id);
    entry.state = state;
    entry.endedUs = nowUs;
    entry.changedUs = nowUs;
    this.#ended.set(id, entry);
    this.#onEnded(entry);
    for (const oldest of this.#ended.keys()) {
      if (this.#ended.size <= this.#endedMax) break;
      this.#ended.delete(oldest);
    }
  }
}
