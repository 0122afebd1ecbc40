// Records trace spans of an instance: each step with the rows of its requests, and each prefix fetch.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import { pageTokens } from '../../util/step.ts';
import type { HandOffEffect } from '../transfer/live-hand-offs.ts';
import { nowUs } from './alarm.ts';
import type { StepTrace } from './thread-protocol.ts';

/** Microseconds since 1970: the monotonic clocks of threads differ. */
function epochUs(atUs: number = nowUs()): number {
  return Math.round(performance.timeOrigin * 1000 + atUs);
}

/** Requests without a step that are remembered. */
const receivedMax = 4096;

export class StepTracer {
  #traces: StepTrace[] = [];
  #rows: StepTrace['rows'] = [];
  #startedUs = 0;
  /** When requests without a step were received; a request that fails before its first step leaves with the oldest. */
  readonly #received = new Map<RequestId, number>();
  /** By request, the start of its prefix fetch. */
  readonly #fetches = new Map<RequestId, number>();
  /** A gateway collects traces: every step is recorded, else only the rows of prompts. */
  enabled: boolean;

  constructor(enabled: boolean) {
    this.enabled = enabled;
  }

  /** A step was planned in the turn that began at `atUs`: from then on its time counts, as the instance learns it. */
  planned(atUs: number): void {
    this.#startedUs = epochUs(atUs);
  }

  /** To be called before a planned step runs. */
  begin({ inFlight }: Pick<TokenInstance, 'inFlight'>): void {
    const shown = this.enabled ? inFlight : inFlight.filter(({ sequence }) => sequence.planned > 1);
    this.#rows = shown.map(({ id, sequence: { computed, planned } }) => [id, computed, planned] as const);
  }

  /** The instance takes the result of the step, completed or aborted, in the turn that begins at `atUs`: it learns this time. */
  end(atUs: number, aborted: boolean): void {
    if (this.#rows.length === 0) return;
    const step = {
      kind: 'step',
      startedUs: this.#startedUs,
      endedUs: epochUs(atUs),
      aborted,
      rows: this.#rows,
    } as const;
    const received = this.#takeReceived();
    this.#traces.push(received.length === 0 ? step : { ...step, received });
  }

  /** A prefix fetch starts or is cancelled. */
  onEffect(effect: HandOffEffect): void {
    if (effect.kind === 'expectPrefix') this.#fetches.set(effect.id, epochUs());
    if (effect.kind === 'closePrefix') this.#fetched(effect.id, 0);
  }

  /** A request, a prompt that was handed off, or a prefix was received, or the prefix is missing. */
  onEvent(event: InstanceEvent): void {
    if (event.kind === 'submit' && this.enabled) this.#receive(event.request.id);
    if (event.kind === 'promptReceived' && this.enabled) this.#receive(event.id);
    if (event.kind === 'cancel') this.#received.delete(event.id);
    if (event.kind === 'loaded' && event.source !== 'ssd') this.#fetched(event.id, event.to);
    if (event.kind === 'peer' && event.message.kind === 'prefixMissing') this.#fetched(event.message.id, 0);
  }

  /** @param blocks blocks of the prompt that are present; 0: the fetch failed */
  #fetched(id: RequestId, blocks: number): void {
    const startedUs = this.#fetches.get(id);
    if (startedUs === undefined) return;
    this.#fetches.delete(id);
    const rows = [[id, 0, blocks * pageTokens]] as const;
    this.#traces.push({ kind: 'fetch', startedUs, endedUs: epochUs(), aborted: blocks === 0, rows });
  }

  #receive(id: RequestId): void {
    this.#received.set(id, epochUs());
    if (this.#received.size <= receivedMax) return;
    const [oldest] = this.#received.keys();
    this.#received.delete(oldest);
  }

  /** Of the requests with rows in the step. */
  #takeReceived(): readonly (readonly [id: RequestId, atUs: number])[] {
    if (this.#received.size === 0) return [];
    return this.#rows.flatMap(([id]) => {
      const atUs = this.#received.get(id);
      this.#received.delete(id);
      return atUs === undefined ? [] : [[id, atUs] as const];
    });
  }

  /** The spans since the last call. */
  take(): readonly StepTrace[] {
    const traces = this.#traces;
    this.#traces = [];
    return traces;
  }
}
