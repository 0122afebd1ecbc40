// Traces in Mooncake's format: one JSON object per line, with the ids of the prompt's blocks.

import { wideZero } from '../util/wide-zero.ts';
import { shown, TraceError, type TraceRequest } from './request.ts';
import { type TimeUnit, timeUnits, unitNames, unitUs } from './time-unit.ts';

const idMax = 2 ** 31 - 1;
/** The largest time stamp with microseconds as an exact integer. */
const timestampMsMax = Math.floor(Number.MAX_SAFE_INTEGER / 1000);

/** @param timeUnit of `timestamp` */
export function parseMooncakeLine(
  text: string,
  line: number,
  index: number,
  { blockTokens, timeUnit }: { readonly blockTokens: number; readonly timeUnit: TimeUnit },
): TraceRequest {
  const row = parseObject(text, line);
  const { timestamp } = row;
  const arrivalUs = typeof timestamp === 'number' ? Math.round(timestamp * unitUs[timeUnit]) : -1;
  if (!(arrivalUs >= 0 && arrivalUs <= Number.MAX_SAFE_INTEGER)) {
    throw new TraceError(line, `timestamp is ${shown(timestamp)}: ${unitNames[timeUnit]} from the start expected`);
  }
  const inputTokens = tokensOf(row, 'input_length', line);
  const outputTokens = tokensOf(row, 'output_length', line);
  const blocks = blockIds(row.hash_ids, line);
  const expected = Math.ceil(inputTokens / blockTokens);
  if (blocks.length !== expected && blocks.length !== 0) {
    throw new TraceError(
      line,
      `hash_ids has ${blocks.length} ids: ${expected} expected for ${inputTokens} tokens in blocks of ${blockTokens}`,
    );
  }
  const request = { index, arrivalUs: wideZero, inputTokens, outputTokens, blocks };
  request.arrivalUs = arrivalUs;
  const labels = labelsOf(row, line);
  return labels === undefined ? request : { ...request, ...labels };
}

export type Row = Readonly<Record<string, unknown>>;

/** Labels that extend Mooncake's format. Undefined: the row has none. */
export function labelsOf(row: Row, line: number): Partial<TraceRequest> | undefined {
  const { slo_class: sloClass, tenant, priority, batch, pin_ms: pinMs, session, turn } = row;
  if ((sloClass ?? tenant ?? priority ?? batch ?? pinMs ?? session ?? turn) === undefined) return undefined;
  if (pinMs !== undefined && !(typeof pinMs === 'number' && pinMs > 0 && pinMs <= timestampMsMax))
    throw new TraceError(line, `pin_ms is ${shown(pinMs)}: milliseconds above 0 expected`);
  if (batch !== undefined && typeof batch !== 'boolean')
    throw new TraceError(line, `batch is ${shown(batch)}: true or false expected`);
  return {
    ...(sloClass === undefined ? {} : { sloClass: name(sloClass, 'slo_class', line) }),
    ...(tenant === undefined ? {} : { tenant: name(tenant, 'tenant', line) }),
    ...(priority === undefined ? {} : { priority: rank(priority, line) }),
    ...(session === undefined ? {} : { session: place(session, 'session', line) }),
    ...(turn === undefined ? {} : { turn: place(turn, 'turn', line) }),
    ...(batch === true ? { batch } : {}),
    ...(pinMs === undefined ? {} : { pinUs: Math.round(pinMs * 1000) }),
  };
}

function name(value: unknown, field: string, line: number): string {
  if (typeof value === 'string' && value.length > 0 && value.length <= 256) return value;
  throw new TraceError(line, `${field} is ${shown(value)}: a name of at most 256 characters expected`);
}

function place(value: unknown, field: string, line: number): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  throw new TraceError(line, `${field} is ${shown(value)}: a whole number of at least 0 expected`);
}

function rank(value: unknown, line: number): number {
  if (typeof value === 'number' && Number.isSafeInteger(value)) return value;
  throw new TraceError(line, `priority is ${shown(value)}: a whole number expected`);
}

/** The unit that the first line of a file states, if it does. @throws TraceError */
export function statedTimeUnit(first: string, line: number): TimeUnit | undefined {
  if (!first.includes('"time_unit"')) return undefined;
  const { time_unit: stated } = parseObject(first, line);
  const unit = timeUnits.find((known) => known === stated);
  if (unit === undefined)
    throw new TraceError(line, `time_unit is ${shown(stated)}: one of ${timeUnits.join(', ')} expected`);
  return unit;
}

/** The first line of a file, which states the unit of its times. */
export function firstMooncakeLine(request: TraceRequest): string {
  return mooncakeLine(request).replace('{', '{"time_unit":"ms",');
}

/** One line without its line break. Parsing it yields the same request. */
export function mooncakeLine(request: TraceRequest): string {
  const { arrivalUs, inputTokens, outputTokens, blocks, pinUs, sloClass, tenant, priority, ...rest } = request;
  const lengths = `"input_length":${inputTokens},"output_length":${outputTokens}`;
  const pinMs = pinUs === undefined ? undefined : pinUs / 1000;
  const { session, turn, batch } = rest;
  const labels = { slo_class: sloClass, tenant, priority, session, turn, batch, pin_ms: pinMs };
  const stated = Object.entries(labels).filter(([, value]) => value !== undefined);
  const more = stated.map(([field, value]) => `,"${field}":${JSON.stringify(value)}`).join('');
  return `{"timestamp":${arrivalUs / 1000},${lengths},"hash_ids":[${blocks.join(',')}]${more}}`;
}

/** @throws TraceError unless the line is a JSON object */
export function parseObject(text: string, line: number): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new TraceError(line, `not JSON: ${shown(text)}`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new TraceError(line, `not a JSON object: ${shown(value)}`);
  }
  return value as Readonly<Record<string, unknown>>;
}

/** @throws TraceError unless the field is a whole number of at least 1 */
export function tokensOf(row: Row, field: string, line: number): number {
  const value = row[field];
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 1) {
    throw new TraceError(line, `${field} is ${shown(value)}: a whole number of at least 1 expected`);
  }
  return value;
}

function blockIds(value: unknown, line: number): Int32Array {
  if (value === undefined) return new Int32Array(0);
  if (!Array.isArray(value)) throw new TraceError(line, `hash_ids is ${shown(value)}: a list of block ids expected`);
  const ids = Int32Array.from(value as ArrayLike<number>);
  for (let i = 0; i < ids.length; i++) {
    // A value that is no 32-bit integer does not survive the conversion.
    if (ids[i] !== value[i] || ids[i] < 0) {
      throw new TraceError(line, `hash_ids[${i}] is ${shown(value[i])}: a whole number of 0 to ${idMax} expected`);
    }
  }
  return ids;
}
