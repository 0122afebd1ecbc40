// The history of a live cluster since its start, which a simulated cluster repeats.
import type { ClusterPort, InferencePort } from '../../core/protocol/ports.ts';
import { type RecordedStep, readStepRecord } from '../../runtime/threads/step-record.ts';
import type { DeliveredStep } from '../../sim/replay/message-times.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { pageTokens } from '../../util/step.ts';
import { deliveryDelaysUs, tokensAt } from './fit.ts';
import { type Served, serveTrace } from './live-run.ts';

/** A request, and the time at which its client received the event `started`. */
export interface StartedRequest extends TraceRequest {
  readonly startedUs: number;
}

/** Arrivals, step times and delivery times, from the start of the history. */
export interface Past {
  readonly requests: readonly StartedRequest[];
  /** (instances) */
  readonly steps: readonly (readonly DeliveredStep[])[];
}

/** A part of the history. */
export interface HistoryPart {
  /** In the order of their ends. */
  readonly served: readonly Served[];
  /** (instances): all steps of that time, by the clock of step records. */
  readonly steps: readonly (readonly RecordedStep[])[];
  /** Range of its requests in the history. */
  readonly from: number;
  readonly to: number;
  /** Its start, from the start of the history. */
  readonly partStartUs: number;
}

export class History {
  readonly #cluster: InferencePort & ClusterPort;
  readonly #records: readonly SharedArrayBuffer[];
  readonly #vocabSize: number;
  readonly #requests: StartedRequest[] = [];
  /** (instances) */
  readonly #steps: readonly DeliveredStep[][];
  #names = 0;
  /** By the clock of step records. */
  #originUs: number | undefined;

  /** @param records (instances): step records */
  constructor(cluster: InferencePort & ClusterPort, records: readonly SharedArrayBuffer[], vocabSize: number) {
    this.#cluster = cluster;
    this.#records = records;
    this.#vocabSize = vocabSize;
    this.#steps = records.map(() => []);
  }

  get instances(): number {
    return this.#records.length;
  }

  /** Requests of different parts share no blocks. */
  async serve(requests: readonly TraceRequest[]): Promise<HistoryPart> {
    const from = this.#requests.length;
    const before = this.#steps.map(({ length }) => length);
    const salt = `part at ${from}`;
    const served = await serveTrace(this.#cluster, requests, { vocabSize: this.#vocabSize, salt });
    const steps = this.#records.map((record, i) => readStepRecord(record, before[i]));
    const [{ clockUs, arrivalUs }] = served;
    this.#originUs ??= clockUs - arrivalUs;
    this.#append(requests, served, this.#originUs);
    for (const [i, all] of steps.entries()) this.#appendSteps(i, all, served, this.#originUs);
    const partStartUs = clockUs - arrivalUs - this.#originUs;
    return { served, steps, from, to: this.#requests.length, partStartUs };
  }

  /** Requests as they arrived, with block ids of this part alone. */
  #append(requests: readonly TraceRequest[], served: readonly Served[], originUs: number): void {
    const inOrder = [...served].sort((a, b) => a.index - b.index);
    const name = this.#namer();
    for (const [i, { inputTokens, outputTokens, blocks }] of requests.entries()) {
      const arrivalUs = inOrder[i].clockUs - originUs;
      const full = Math.floor(inputTokens / pageTokens);
      // Keys and values of the last token are never computed.
      const whole = Math.floor((inputTokens + outputTokens - 1) / pageTokens);
      this.#requests.push({
        ...{ index: this.#requests.length, arrivalUs, inputTokens, outputTokens },
        startedUs: arrivalUs + inOrder[i].startedUs,
        blocks: Int32Array.from({ length: full }, (_, k) => name(blocks.at(k))),
        outputBlocks: Int32Array.from({ length: whole - full }, () => name(undefined)),
      });
    }
  }

  /** A block id of a part: equal for equal ids, unique without one. */
  #namer(): (id: number | undefined) => number {
    const known = new Map<number, number>();
    return (id) => {
      const name = (id === undefined ? undefined : known.get(id)) ?? this.#names++;
      if (id !== undefined) known.set(id, name);
      return name;
    };
  }

  #appendSteps(instance: number, steps: readonly RecordedStep[], served: readonly Served[], originUs: number): void {
    const lateUs = deliveryDelaysUs(steps, tokensAt(instance, served));
    for (const [k, { startedUs, us, shape }] of steps.entries()) {
      const late = lateUs.at(k);
      const deliveredUs = late === undefined ? undefined : startedUs + us + late - originUs;
      this.#steps[instance].push({ startedUs: startedUs - originUs, us, shape, deliveredUs });
    }
  }

  /** The history before the request at this index, with the steps that started before it. */
  until(place: number): Past {
    const endUs = this.#requests.at(place)?.arrivalUs ?? Number.POSITIVE_INFINITY;
    const steps = this.#steps.map((all) => all.filter(({ startedUs }) => startedUs < endUs));
    return { requests: this.#requests.slice(0, place), steps };
  }
}
