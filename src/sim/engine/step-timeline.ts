// The steps of a run as a timeline, within a window and up to a number of events.

import { type TimelineEvent, timelineEvent } from '../../trace/timeline.ts';
import type { Span } from '../../trace/transform.ts';
import type { StepListener } from './executor.ts';

/** Holds its text until `take`. */
export class StepTimeline {
  readonly #fromUs: number;
  readonly #toUs: number;
  readonly #eventsMax: number;
  #text: string[] = [];
  #events = 0;
  #leftOut = 0;

  constructor({ from, to }: Pick<Span, 'from' | 'to'>, eventsMax: number) {
    this.#fromUs = from;
    this.#toUs = to;
    this.#eventsMax = eventsMax;
  }

  /** Steps in the window beyond the maximum. */
  get leftOut(): number {
    return this.#leftOut;
  }

  /** Text since the last call. */
  take(): string {
    const text = this.#text.join('');
    this.#text = [];
    return text;
  }

  readonly addSteps: StepListener = (instance, startedUs, shape, stepUs) => {
    if (startedUs >= this.#toUs) return;
    const { rows, decodeRows } = shape;
    const prefillRows = rows - decodeRows;
    const name = prefillRows === 0 ? 'decode' : decodeRows === 0 ? 'prefill' : 'prefill and decode';
    let startUs = startedUs;
    for (let i = 0; i < stepUs.length; i++) {
      const keyRows = shape.keyRows + i * rows;
      this.#add({ name, row: instance, startUs, durationUs: stepUs[i], args: { decodeRows, prefillRows, keyRows } });
      startUs += stepUs[i];
    }
  };

  #add(event: TimelineEvent): void {
    if (event.startUs + event.durationUs <= this.#fromUs || event.startUs >= this.#toUs) return;
    if (this.#events === this.#eventsMax) this.#leftOut++;
    else {
      this.#events++;
      this.#text.push(timelineEvent(event));
    }
  }
}
