// Progress of a simulated run: a moving line on a terminal, and occasional lines elsewhere.
import type { ProgressOutput } from '../serve/model/pull-progress.ts';

const redrawMs = 200;
const lineMs = 10_000;
/** Shorter runs print nothing. */
const quietMs = 1_000;

export interface Progressing {
  readonly nowUs: number;
  readonly unfinished: number;
  readonly outcome: { readonly requests: number };
}

export class SimulationProgress {
  readonly #output: ProgressOutput;
  readonly #clock: () => number;
  readonly #startedMs: number;
  #shownMs: number;
  #drawn = false;

  constructor(output: ProgressOutput, clock: () => number = () => performance.now()) {
    this.#output = output;
    this.#clock = clock;
    this.#startedMs = clock();
    this.#shownMs = this.#startedMs;
  }

  /** @param share of the workload that has arrived */
  show(share: number, run: Progressing): void {
    const nowMs = this.#clock();
    const terminal = this.#output.isTTY === true;
    if (nowMs - this.#startedMs < quietMs || nowMs - this.#shownMs < (terminal ? redrawMs : lineMs)) return;
    this.#shownMs = nowMs;
    const text = describe(share, run, nowMs - this.#startedMs);
    if (terminal) this.#output.write(`\r${text.slice(0, (this.#output.columns ?? 80) - 1)}\x1b[K`);
    else this.#output.write(`${text}\n`);
    this.#drawn = terminal;
  }

  /** Clears the progress line. */
  close(): void {
    if (this.#drawn) this.#output.write('\r\x1b[K');
    this.#drawn = false;
  }
}

function describe(share: number, { nowUs, unfinished, outcome }: Progressing, elapsedMs: number): string {
  const done = `${durationText(nowUs / 1e6)} simulated, ${outcome.requests.toLocaleString('en')} requests ended, ${unfinished.toLocaleString('en')} under way`;
  if (share >= 1) return `Simulating: all requests arrived, ${done}`;
  const left = share > 0 ? `, ${durationText((elapsedMs / 1000) * (1 / share - 1))} left` : '';
  return `Simulating: ${Math.floor(100 * share)} %, ${done}${left}`;
}

export function durationText(seconds: number): string {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}
