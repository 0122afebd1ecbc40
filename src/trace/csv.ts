// Traces as CSV: Azure's LLM inference data, BurstGPT and Vidur. They have lengths and arrivals, and no block ids.
import { wideZero } from '../util/wide-zero.ts';
import { shown, TraceError, type TraceRequest } from './request.ts';
import { type TimeUnit, unitUs } from './time-unit.ts';

/** Columns by name; further ones are ignored. */
interface CsvFormat {
  readonly name: string;
  readonly time: string;
  readonly input: string;
  readonly output: string;
  /** Unit of the times; undefined: they are UTC dates with times. */
  readonly timeUnit: TimeUnit | undefined;
  /** A row without output tokens is a request that failed. */
  readonly hasFailures: boolean;
}

const formats: readonly CsvFormat[] = [
  {
    ...{ name: 'Azure CSV', time: 'TIMESTAMP', input: 'ContextTokens', output: 'GeneratedTokens' },
    ...{ timeUnit: undefined, hasFailures: false },
  },
  {
    ...{ name: 'BurstGPT CSV', time: 'Timestamp', input: 'Request tokens', output: 'Response tokens' },
    ...{ timeUnit: 's', hasFailures: true },
  },
  {
    ...{ name: 'Vidur CSV', time: 'arrived_at', input: 'num_prefill_tokens', output: 'num_decode_tokens' },
    ...{ timeUnit: 's', hasFailures: false },
  },
];

/** 'TIMESTAMP,ContextTokens,GeneratedTokens' and so on. */
export const csvHeaders = formats.map(({ time, input, output }) => [time, input, output].join(','));

const stampPattern = /^(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?$/;
const numberPattern = /^\d{1,16}(?:\.\d*)?(?:[eE][+-]?\d{1,2})?$/;
const noBlocks = new Int32Array(0);

/** The rows of one file. Arrivals count from its first request. */
export class CsvTrace {
  readonly format: CsvFormat;
  /** Undefined: times are dates. */
  readonly timeUnit: TimeUnit | undefined;
  readonly #columns: number;
  readonly #time: number;
  readonly #input: number;
  readonly #output: number;
  #startUs: number | undefined;

  private constructor(format: CsvFormat, header: readonly string[], timeUnit: TimeUnit | undefined) {
    this.format = format;
    this.timeUnit = format.timeUnit === undefined ? undefined : (timeUnit ?? format.timeUnit);
    this.#columns = header.length;
    this.#time = header.indexOf(format.time);
    this.#input = header.indexOf(format.input);
    this.#output = header.indexOf(format.output);
  }

  /** Undefined: the line is no header of a known format. @param timeUnit stated by the user */
  static open(line: string, timeUnit: TimeUnit | undefined): CsvTrace | undefined {
    const header = line.split(',').map((name) => name.trim());
    const format = formats.find(({ time, input, output }) =>
      [time, input, output].every((name) => header.includes(name)),
    );
    if (format === undefined) return undefined;
    if (format.timeUnit === undefined && timeUnit !== undefined)
      throw new TraceError(1, `--time-unit ${timeUnit} has no meaning: ${format.time} has dates`);
    return new CsvTrace(format, header, timeUnit);
  }

  /** Undefined: the request failed. */
  parse(text: string, line: number, index: number): TraceRequest | undefined {
    const cells = text.split(',');
    if (cells.length !== this.#columns)
      throw new TraceError(line, `${cells.length} cells: ${this.#columns} expected: ${shown(text)}`);
    const { time, input, output, hasFailures } = this.format;
    const stamp = cells[this.#time];
    const atUs = this.timeUnit === undefined ? stampUs(time, stamp, line) : numberUs(time, stamp, this.timeUnit, line);
    const least = hasFailures ? 0 : 1;
    const inputTokens = tokens(input, cells[this.#input], line, least);
    const outputTokens = tokens(output, cells[this.#output], line, least);
    if (inputTokens === 0 || outputTokens === 0) return undefined;
    this.#startUs ??= atUs;
    if (atUs < this.#startUs) throw new TraceError(line, `${time} is ${shown(stamp)}: before that of the first row`);
    const request = { index, arrivalUs: wideZero, inputTokens, outputTokens, blocks: noBlocks };
    request.arrivalUs = atUs - this.#startUs;
    return request;
  }
}

function tokens(field: string, text: string, line: number, least: number): number {
  const value = /^\d{1,15}(?:\.0*)?$/.test(text) ? Number(text) : -1;
  if (value < least)
    throw new TraceError(line, `${field} is ${shown(text)}: a whole number of at least ${least} expected`);
  return value;
}

function numberUs(field: string, text: string, unit: TimeUnit, line: number): number {
  const us = numberPattern.test(text) ? Math.round(Number(text) * unitUs[unit]) : -1;
  if (us >= 0 && us <= Number.MAX_SAFE_INTEGER) return us;
  throw new TraceError(line, `${field} is ${shown(text)}: a number of at least 0 in ${unit} expected`);
}

/** Microseconds from 1970 to a UTC time stamp. */
function stampUs(field: string, text: string, line: number): number {
  const match = stampPattern.exec(text);
  const [year, month, day, hour, minute, second] = (match ?? []).slice(1, 7).map(Number);
  if (match === null || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) {
    throw new TraceError(line, `${field} is ${shown(text)}: YYYY-MM-DD HH:MM:SS.fffffff expected`);
  }
  const seconds = ((daysSince1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
  const fraction = `${match[7] ?? ''}000000`;
  return seconds * 1_000_000 + Number(fraction.slice(0, 6));
}

/** Proleptic Gregorian calendar; years begin in March, so that the leap day is the last day. */
function daysSince1970(year: number, month: number, day: number): number {
  const y = month > 2 ? year : year - 1;
  const monthFromMarch = (month + 9) % 12;
  const dayOfYear = Math.floor((153 * monthFromMarch + 2) / 5) + day - 1;
  return 365 * y + Math.floor(y / 4) - Math.floor(y / 100) + Math.floor(y / 400) + dayOfYear - 719_468;
}
