// One request of a workload, and the error of an invalid line.
import type { RequestLengths } from '../util/request-lengths.ts';

export interface TraceRequest extends RequestLengths {
  /** Not a request: pins the full blocks of its prompt for so long. */
  readonly pinUs?: number;
}

/** An invalid line, with its number, field and value. */
export class TraceError extends Error {
  constructor(line: number, why: string) {
    super(`Cannot read the trace: line ${line}: ${why}`);
    this.name = 'TraceError';
  }
}

/** A shortened value for an error message. */
export function shown(value: unknown): string {
  const text = value === undefined ? 'missing' : (JSON.stringify(value) ?? String(value));
  return text.length > 40 ? `${text.slice(0, 40)}...` : text;
}
