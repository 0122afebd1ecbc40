// Parses a trace of any supported format as it streams, without holding its text.

import { wideZero } from '../util/wide-zero.ts';
import { azureHeader, parseAzureLine } from './azure.ts';
import { parseMooncakeLine } from './mooncake.ts';
import { shown, TraceError, type TraceRequest } from './request.ts';

export interface TraceParserOptions {
  /** Block size of the trace in tokens: 512 in Mooncake's. */
  readonly blockTokens: number;
}

/** A line may span several pieces. The first line determines the format: a JSON object, or Azure's CSV header. */
export class TraceParser {
  readonly #blockTokens: number;
  #format: 'mooncake' | 'azure' | undefined;
  #rest = '';
  #line = 0;
  #count = 0;
  #lastUs: number = wideZero;
  #startUs: number | undefined;

  constructor({ blockTokens }: TraceParserOptions) {
    this.#blockTokens = blockTokens;
  }

  /** Appends the requests that `text` completes. @throws TraceError naming line, field and value */
  push(text: string, out: TraceRequest[]): void {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop() ?? '';
    for (const line of lines) this.#take(line, out);
  }

  /** The text has ended. */
  end(out: TraceRequest[]): void {
    if (this.#rest !== '') this.#take(this.#rest, out);
    this.#rest = '';
    if (this.#count === 0) throw new TraceError(Math.max(1, this.#line), 'the file holds no request');
  }

  #take(raw: string, out: TraceRequest[]): void {
    this.#line++;
    const text = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
    if (text.trim() === '') return;
    this.#format ??= formatOf(text, this.#line);
    if (text === azureHeader) return;
    const request = this.#parse(text);
    if (request.arrivalUs < this.#lastUs) {
      throw new TraceError(
        this.#line,
        `time stamps are out of order: ${request.arrivalUs} us after ${this.#lastUs} us of the request before`,
      );
    }
    this.#lastUs = request.arrivalUs;
    this.#count++;
    out.push(request);
  }

  #parse(text: string): TraceRequest {
    if (this.#format === 'mooncake') return parseMooncakeLine(text, this.#line, this.#count, this.#blockTokens);
    const { request, startUs } = parseAzureLine(text, this.#line, this.#count, this.#startUs);
    this.#startUs = startUs;
    return request;
  }
}

function formatOf(text: string, line: number): 'mooncake' | 'azure' {
  if (text.startsWith('{')) return 'mooncake';
  if (text === azureHeader) return 'azure';
  throw new TraceError(line, `neither a JSON object nor the header ${azureHeader}: ${shown(text)}`);
}
