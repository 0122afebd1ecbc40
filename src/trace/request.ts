// One request of a workload, and the error of a line that is none.
import type { RequestLengths } from '../util/request-lengths.ts';

export interface TraceRequest extends RequestLengths {
  /** No request: the full blocks of its prompt are to be kept for so long. */
  readonly pinUs?: number;
}

/** A line that cannot be a request: names line, field and value. */
export class TraceError extends Error {
  constructor(line: number, why: string) {
    super(`Cannot read the trace: line ${line}: ${why}`);
    this.name = 'TraceError';
  }
}

/** A value as an error shows it: short, whatever it is. */
export function shown(value: unknown): string {
  const text = value === undefined ? 'missing' : (JSON.stringify(value) ?? String(value));
  return text.length > 40 ? `${text.slice(0, 40)}...` : text;
}
