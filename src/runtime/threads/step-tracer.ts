// Records for traces what an instance does for requests: when each step ran, with which tokens of which requests, and when prefixes came.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import { pageTokens } from '../../util/step.ts';
import type { HandOffEffect } from '../transfer/live-hand-offs.ts';
import type { StepTrace } from './thread-protocol.ts';

/** Microseconds since 1970: threads have clocks of their own. */
function epochUs(): number {
  return Math.round((performance.timeOrigin + performance.now()) * 1000);
}

export class StepTracer {
  #traces: StepTrace[] = [];
  #rows: StepTrace['rows'] = [];
  #startedUs = 0;
  /** By request: when its prefix was asked for. */
  readonly #fetches = new Map<RequestId, number>();
  /** Does somebody want to hear of steps? */
  enabled: boolean;

  constructor(on: boolean) {
    this.enabled = on;
  }

  /** A step is about to run. */
  begin({ inFlight }: Pick<TokenInstance, 'inFlight'>): void {
    if (!this.enabled) return;
    this.#rows = inFlight.map(({ id, sequence: { computed, planned } }) => [id, computed, planned] as const);
    this.#startedUs = epochUs();
  }

  /** It has run, or was stopped. */
  end(aborted: boolean): void {
    if (!this.enabled) return;
    this.#traces.push({ kind: 'step', startedUs: this.#startedUs, endedUs: epochUs(), aborted, rows: this.#rows });
  }

  /** A prefix is asked for, or not waited for any more. */
  onEffect(effect: HandOffEffect): void {
    if (effect.kind === 'expectPrefix' && this.enabled) this.#fetches.set(effect.id, epochUs());
    if (effect.kind === 'closePrefix') this.#fetched(effect.id, 0);
  }

  /** A prefix may have come, or there is none. */
  onEvent(event: InstanceEvent): void {
    if (event.kind === 'loaded' && event.source !== 'ssd') this.#fetched(event.id, event.to);
    if (event.kind === 'peer' && event.message.kind === 'missing') this.#fetched(event.message.id, 0);
  }

  /** @param blocks of its prompt that are here then */
  #fetched(id: RequestId, blocks: number): void {
    const startedUs = this.#fetches.get(id);
    if (startedUs === undefined) return;
    this.#fetches.delete(id);
    const rows = [[id, 0, blocks * pageTokens]] as const;
    this.#traces.push({ kind: 'fetch', startedUs, endedUs: epochUs(), aborted: blocks === 0, rows });
  }

  /** Those since the last time. */
  take(): readonly StepTrace[] {
    const traces = this.#traces;
    this.#traces = [];
    return traces;
  }
}
