// W3C trace context: the trace of a request.
import { randomBytes } from 'node:crypto';

export interface TraceContext {
  /** 32 hexadecimal digits. */
  readonly traceId: string;
  /** 16 hexadecimal digits; undefined: the trace starts here. */
  readonly parentId: string | undefined;
  /** False if the trace is not sampled. */
  readonly sampled: boolean;
}

const pattern = /^([\da-f]{2})-([\da-f]{32})-([\da-f]{16})-([\da-f]{2})(-.*)?$/;
const noParent = '0'.repeat(16);

/** Reads the header `traceparent`; a new trace if it is missing or invalid. The parent id of a new trace is 0. */
export function traceOf(traceparent: string | undefined): string {
  const [, version, traceId = '', parentId = '', flags = '', more] = pattern.exec(traceparent?.trim() ?? '') ?? [];
  const valid = version !== undefined && version !== 'ff' && /[^0]/.test(traceId) && /[^0]/.test(parentId);
  if (!valid || (version === '00' && more !== undefined)) return `00-${newId(16)}-${noParent}-01`;
  return `00-${traceId}-${parentId}-${flags}`;
}

/** @param trace from `traceOf`; undefined: a new one */
export function traceContext(trace: string = traceOf(undefined)): TraceContext {
  const [, traceId, parentId, flags] = trace.split('-');
  const sampled = (Number.parseInt(flags, 16) & 1) === 1;
  return { traceId, parentId: parentId === noParent ? undefined : parentId, sampled };
}

/** A random id that is not 0. */
export function newId(bytes: 8 | 16): string {
  const id = randomBytes(bytes).toString('hex');
  return /[^0]/.test(id) ? id : newId(bytes);
}
