// Units of the times in a trace, and the refusal of a unit that yields an implausible rate.
import { TraceError } from './request.ts';

export const timeUnits = ['s', 'ms', 'us'] as const;
export type TimeUnit = (typeof timeUnits)[number];

export const unitUs: Readonly<Record<TimeUnit, number>> = { s: 1e6, ms: 1e3, us: 1 };
export const unitNames: Readonly<Record<TimeUnit, string>> = { s: 'seconds', ms: 'milliseconds', us: 'microseconds' };

/** Plausible mean gaps between requests: from 250 requests a second to one an hour. */
const gapUsMin = 4_000;
const gapUsMax = 3600e6;
/** Requests that are measured, and the smallest number of them that is a measure. */
const sample = 512;
const sampleMin = 8;

/** Measures the first requests of a trace whose unit is assumed. */
export class TimeUnitCheck {
  readonly #field: string;
  readonly #unit: TimeUnit;
  #firstUs = 0;
  #lastUs = 0;
  #count = 0;

  /** @param field that holds the time */
  constructor(field: string, unit: TimeUnit) {
    this.#field = field;
    this.#unit = unit;
  }

  /** @throws TraceError if another unit is more likely */
  add(arrivalUs: number, line: number): void {
    if (this.#count >= sample) return;
    if (this.#count++ === 0) this.#firstUs = arrivalUs;
    this.#lastUs = arrivalUs;
    if (this.#count === sample) this.#check(line);
  }

  /** The trace has ended. @throws TraceError */
  end(line: number): void {
    if (this.#count >= sampleMin && this.#count < sample) this.#check(line);
  }

  #check(line: number): void {
    const gapUs = (this.#lastUs - this.#firstUs) / (this.#count - 1);
    if (gapUs === 0 || isPlausible(gapUs)) return;
    const likely = timeUnits.find((unit) => isPlausible((gapUs * unitUs[unit]) / unitUs[this.#unit]));
    if (likely === undefined) return;
    const seconds = Number(((this.#lastUs - this.#firstUs) / 1e6).toPrecision(3));
    throw new TraceError(
      line,
      `${this.#field}: ${this.#count} requests in ${seconds} s if read as ${unitNames[this.#unit]}: use --time-unit ${likely}, or --time-unit ${this.#unit} if this is right`,
    );
  }
}

function isPlausible(gapUs: number): boolean {
  return gapUs >= gapUsMin && gapUs <= gapUsMax;
}
