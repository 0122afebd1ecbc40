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

export class StepTracer {
  #traces: StepTrace[] = [];
  #rows: StepTrace['rows'] = [];
  #startedUs = 0;
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

  /** To be called when the instance takes the result of the step, completed or aborted. */
  end(aborted: boolean): void {
    if (this.#rows.length === 0) return;
    this.#traces.push({ kind: 'step', startedUs: this.#startedUs, endedUs: epochUs(), aborted, rows: this.#rows });
  }

  /** A prefix fetch starts or is cancelled. */
  onEffect(effect: HandOffEffect): void {
    if (effect.kind === 'expectPrefix') this.#fetches.set(effect.id, epochUs());
    if (effect.kind === 'closePrefix') this.#fetched(effect.id, 0);
  }

  /** A prefix was received, or is missing. */
  onEvent(event: InstanceEvent): void {
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

  /** The spans since the last call. */
  take(): readonly StepTrace[] {
    const traces = this.#traces;
    this.#traces = [];
    return traces;
  }
}
