// Steps, transfers and requests of a run as a timeline, within a window and up to a number of events.

import { timelineArrow, timelineEvent, timelineSpan } from '../../trace/timeline.ts';
import type { Span } from '../../trace/transform.ts';
import type { StepListener } from '../engine/executor.ts';
import type { TransferListener } from '../network/network.ts';
import type { RequestRecord } from './request-recorder.ts';

/** Holds its text until `take`. */
export class RunTimeline {
  readonly #fromUs: number;
  readonly #toUs: number;
  readonly #eventsMax: number;
  #text: string[] = [];
  #events = 0;
  #leftOut = 0;
  #transfers = 0;

  constructor({ from, to }: Pick<Span, 'from' | 'to'>, eventsMax: number) {
    this.#fromUs = from;
    this.#toUs = to;
    this.#eventsMax = eventsMax;
  }

  /** Steps, transfers and requests in the window beyond the maximum. */
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
      const args = { decodeRows, prefillRows, keyRows };
      if (this.#takes(startUs, startUs + stepUs[i]))
        this.#text.push(timelineEvent({ name, row: instance, startUs, durationUs: stepUs[i], args }));
      startUs += stepUs[i];
    }
  };

  /** A hand-off of a prompt, a prefix from another instance, or lent blocks. */
  readonly addTransfer: TransferListener = ({ kind, name, from, to, startedUs, endedUs, bytes }) => {
    if (!this.#takes(startedUs, endedUs)) return;
    const id = String(this.#transfers++);
    const label = `${kind} ${name}`;
    this.#text.push(
      timelineSpan({
        ...{ group: 'transfers', name: label, id, startUs: startedUs, endUs: endedUs, phases: [] },
        args: { from, to, bytes: Math.round(bytes) },
      }),
      timelineArrow({ name: label, id, from: { row: from, us: startedUs }, to: { row: to, us: endedUs } }),
    );
  };

  /** With its queue, prefill and decode. */
  addRequest({ index, arrivalMs, queueMs, ttftMs, e2eMs, ...record }: RequestRecord): void {
    const at = (ms: number) => Math.round(1000 * (arrivalMs + ms));
    if (!this.#takes(at(0), at(e2eMs))) return;
    const ends = { queue: queueMs ?? e2eMs, prefill: ttftMs ?? e2eMs, decode: e2eMs };
    let beginMs = 0;
    const phases = Object.entries(ends).flatMap(([name, endMs]) => {
      const phase = { name, startUs: at(beginMs), endUs: at(endMs) };
      beginMs = endMs;
      return phase.endUs > phase.startUs ? [phase] : [];
    });
    const { outcome, promptTokens, outputTokens, cachedTokens, preemptions } = record;
    const args = { outcome, promptTokens, outputTokens, cachedTokens, preemptions };
    const name = `request ${index}`;
    const span = { name, id: `${index} ${at(0)}`, startUs: at(0), endUs: at(e2eMs), args, phases };
    this.#text.push(timelineSpan({ group: 'requests', ...span }));
  }

  /** True if the interval is in the window and below the maximum. */
  #takes(startUs: number, endUs: number): boolean {
    if (endUs <= this.#fromUs || startUs >= this.#toUs) return false;
    if (this.#events === this.#eventsMax) {
      this.#leftOut++;
      return false;
    }
    this.#events++;
    return true;
  }
}
