// W3C trace context: which trace a request belongs to.
import { randomBytes } from 'node:crypto';

export interface TraceContext {
  /** 32 hexadecimal digits. */
  readonly traceId: string;
  /** 16 hexadecimal digits; undefined: the trace begins here. */
  readonly parentId: string | undefined;
  /** False: whoever began the trace does not want it kept. */
  readonly sampled: boolean;
}

const pattern = /^([\da-f]{2})-([\da-f]{32})-([\da-f]{16})-([\da-f]{2})(-.*)?$/;
const nobody = '0'.repeat(16);

/** Of the header `traceparent`; a new trace where there is none, or none that can be read. As requests carry it: without a parent, its id is 0. */
export function traceOf(traceparent: string | undefined): string {
  const [, version, traceId = '', parentId = '', flags = '', more] = pattern.exec(traceparent?.trim() ?? '') ?? [];
  const valid = version !== undefined && version !== 'ff' && /[^0]/.test(traceId) && /[^0]/.test(parentId);
  if (!valid || (version === '00' && more !== undefined)) return `00-${newId(16)}-${nobody}-01`;
  return `00-${traceId}-${parentId}-${flags}`;
}

/** @param trace as `traceOf` gives it; undefined: a new one */
export function traceContext(trace: string = traceOf(undefined)): TraceContext {
  const [, traceId, parentId, flags] = trace.split('-');
  const sampled = (Number.parseInt(flags, 16) & 1) === 1;
  return { traceId, parentId: parentId === nobody ? undefined : parentId, sampled };
}

/** @param bytes not all of them 0 */
export function newId(bytes: 8 | 16): string {
  const id = randomBytes(bytes).toString('hex');
  return /[^0]/.test(id) ? id : newId(bytes);
}
