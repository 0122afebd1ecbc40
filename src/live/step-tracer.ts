// Records the steps of an instance for traces: when each ran, and which tokens of which requests were in it.
import type { TokenInstance } from '../cluster/token-work.ts';
import type { StepTrace } from './protocol.ts';

/** Microseconds since 1970: threads have clocks of their own. */
function epochUs(): number {
  return Math.round((performance.timeOrigin + performance.now()) * 1000);
}

export class StepTracer {
  #steps: StepTrace[] = [];
  #rows: StepTrace['rows'] = [];
  #startedUs = 0;
  /** Does somebody want to hear of steps? */
  on: boolean;

  constructor(on: boolean) {
    this.on = on;
  }

  /** A step is about to run. */
  begin({ inFlight }: Pick<TokenInstance, 'inFlight'>): void {
    if (!this.on) return;
    this.#rows = inFlight.map(({ id, sequence: { computed, planned } }) => [id, computed, planned] as const);
    this.#startedUs = epochUs();
  }

  /** It has run, or was stopped. */
  end(aborted: boolean): void {
    if (this.on) this.#steps.push({ startedUs: this.#startedUs, endedUs: epochUs(), aborted, rows: this.#rows });
  }

  /** Those since the last time. */
  take(): readonly StepTrace[] {
    const steps = this.#steps;
    this.#steps = [];
    return steps;
  }
}
