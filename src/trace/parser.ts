// Parses a trace of any supported format as it streams, without holding its text.
import { wideZero } from '../util/wide-zero.ts';
import { BailianTrace, isBailianLine } from './bailian.ts';
import { CsvTrace, csvHeaders } from './csv.ts';
import { parseMooncakeLine, statedTimeUnit } from './mooncake.ts';
import { RecordingReader } from './recording/reader.ts';
import { isRecordingLine } from './recording/recording.ts';
import { shown, TraceError, type TraceRequest } from './request.ts';
import { type TimeUnit, TimeUnitCheck } from './time-unit.ts';

export interface TraceParserOptions {
  /** Block size of the requests in tokens; that of Mooncake's traces is 512. */
  readonly blockTokens: number;
  /** Unit of the times in the text; undefined: that of its format, unless the rate is then implausible. */
  readonly timeUnit?: TimeUnit | undefined;
}

/** What the parser found in the text. */
export interface TraceSource {
  readonly format: string;
  /** Undefined: times are dates. */
  readonly timeUnit: TimeUnit | undefined;
  /** Rows of requests that failed, which are left out. */
  readonly failedRows: number;
  /** The last line of a recording was not written to its end, and is left out. */
  readonly isTorn?: true;
}

interface LineReader {
  readonly format: string;
  readonly timeField: string;
  readonly timeUnit: TimeUnit | undefined;
  /** Undefined: the lines have no header. */
  readonly header: string | undefined;
  /** The file states the unit of its times. */
  readonly statesUnit: boolean;
  /** Undefined: the row is a request that failed. */
  readonly parse: (text: string, line: number, index: number) => TraceRequest | undefined;
  /** Of a file whose requests are not in the order of their arrivals: takes a line, and returns all requests at the end. */
  readonly sorted?: RecordingReader;
}

/** A line may span several pieces. */
export class TraceParser {
  readonly #options: TraceParserOptions;
  #reader: LineReader | undefined;
  #unitCheck: TimeUnitCheck | undefined;
  #rest = '';
  #line = 0;
  #count = 0;
  #failedRows = 0;
  #isTorn = false;
  #lastUs: number = wideZero;

  constructor(options: TraceParserOptions) {
    this.#options = options;
  }

  /** Undefined before the first line. */
  get source(): TraceSource | undefined {
    if (this.#reader === undefined) return undefined;
    const { format, timeUnit } = this.#reader;
    return { format, timeUnit, failedRows: this.#failedRows, ...(this.#isTorn && { isTorn: true }) };
  }

  /** Appends the requests that `text` completes. @throws TraceError naming line, field and value */
  push(text: string, out: TraceRequest[]): void {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop() ?? '';
    for (const line of lines) this.#take(line, out);
  }

  /** The text has ended. */
  end(out: TraceRequest[]): void {
    this.#isTorn = this.#rest !== '' && this.#reader?.sorted !== undefined;
    if (this.#rest !== '' && !this.#isTorn) this.#take(this.#rest, out);
    this.#rest = '';
    const requests = this.#reader?.sorted?.end().requests ?? [];
    for (const { request } of requests) out.push(request);
    this.#count += requests.length;
    if (this.#count === 0) throw new TraceError(Math.max(1, this.#line), 'the file holds no request');
    this.#unitCheck?.end(this.#line);
  }

  #take(raw: string, out: TraceRequest[]): void {
    this.#line++;
    const text = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
    if (text.trim() === '') return;
    const isFirst = this.#reader === undefined;
    this.#reader ??= this.#open(text);
    if (this.#reader.sorted !== undefined) {
      if (!isFirst) this.#reader.sorted.take(text, this.#line);
      return;
    }
    if (text === this.#reader.header) return;
    const request = this.#reader.parse(text, this.#line, this.#count);
    if (request === undefined) {
      this.#failedRows++;
      return;
    }
    if (request.arrivalUs < this.#lastUs) {
      throw new TraceError(
        this.#line,
        `time stamps are out of order: ${request.arrivalUs} us after ${this.#lastUs} us of the request before`,
      );
    }
    this.#lastUs = request.arrivalUs;
    this.#count++;
    this.#unitCheck?.add(request.arrivalUs, this.#line);
    out.push(request);
  }

  #open(text: string): LineReader {
    const reader = readerOf(text, this.#line, this.#options);
    if (this.#options.timeUnit === undefined && reader.timeUnit !== undefined && !reader.statesUnit)
      this.#unitCheck = new TimeUnitCheck(reader.timeField, reader.timeUnit);
    return reader;
  }
}

/** @param first the first line: a header or a request */
function readerOf(first: string, line: number, { blockTokens, timeUnit }: TraceParserOptions): LineReader {
  if (first.startsWith('{')) {
    const timeField = 'timestamp';
    if (isRecordingLine(first)) {
      const sorted = new RecordingReader(first, line, blockTokens);
      const found = { timeField, timeUnit: 'ms', statesUnit: true, header: undefined } as const;
      return { format: 'recording of kvasir serve', ...found, parse: () => undefined, sorted };
    }
    if (!isBailianLine(first)) {
      const stated = statedTimeUnit(first, line);
      const units = { blockTokens, timeUnit: timeUnit ?? stated ?? 'ms' };
      const parse: LineReader['parse'] = (text, at, index) => parseMooncakeLine(text, at, index, units);
      return {
        format: 'Mooncake JSON lines',
        timeField,
        timeUnit: units.timeUnit,
        statesUnit: stated !== undefined,
        header: undefined,
        parse,
      };
    }
    const trace = new BailianTrace(blockTokens, timeUnit, line);
    const parse: LineReader['parse'] = (text, at, index) => trace.parse(text, at, index);
    const found = { timeField, timeUnit: trace.timeUnit, statesUnit: false };
    return { format: 'Bailian JSON lines', ...found, header: undefined, parse };
  }
  const csv = CsvTrace.open(first, timeUnit);
  if (csv === undefined)
    throw new TraceError(line, `neither a JSON object nor the header ${csvHeaders.join(' or ')}: ${shown(first)}`);
  return {
    format: csv.format.name,
    timeField: csv.format.time,
    timeUnit: csv.timeUnit,
    statesUnit: false,
    header: first,
    parse: (text, at, index) => csv.parse(text, at, index),
  };
}
