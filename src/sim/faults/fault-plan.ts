// The faults of a simulated cluster: their kinds, times and probabilities, and their text form.
import type { InstanceIndex } from '../../core/protocol/ids.ts';

/** Loss, duplication and delay apply to each message with a probability; the other kinds occur at a time or repeatedly. */
export const faultKinds = [
  'loss',
  'duplication',
  'delay',
  'crash',
  'worker',
  'partition',
  'slow',
  'conductor',
  'gmanager',
] as const;
export type FaultKind = (typeof faultKinds)[number];

export interface Fault {
  readonly kind: FaultKind;
  /** Share of affected messages. */
  readonly ratio: number;
  /** Mean delay of a delayed message. */
  readonly byUs: number;
  /** Of a fault that occurs once. */
  readonly atUs: number | undefined;
  /** Mean time between two occurrences of a repeated fault. */
  readonly everyUs: number | undefined;
  /** Duration: exact, or the mean of a repeated fault. Infinity: permanent. */
  readonly forUs: number;
  /** Undefined: drawn at random. */
  readonly instances: readonly InstanceIndex[] | undefined;
  /** Factor on the step times of a slow instance. */
  readonly factor: number;
}

export interface FaultTimes {
  /** Between two reports of an instance. */
  readonly reportUs: number;
  /** An instance without a report for this time is declared failed. */
  readonly silentUs: number;
  /** A request that has not ended after this time fails. */
  readonly timeoutUs: number;
  /** Maximum number of attempts of a request. */
  readonly attemptsMax: number;
}

export const defaultFaultTimes: FaultTimes = {
  reportUs: 500_000,
  silentUs: 3_000_000,
  timeoutUs: 600_000_000,
  attemptsMax: 5,
};

export interface FaultPlan {
  readonly seed: number;
  readonly faults: readonly Fault[];
  readonly times: FaultTimes;
}

/** Names of injected faults in reports. */
export type FaultName =
  | ('loss' | 'duplication' | 'delay' | 'partition' | 'crash' | 'restart' | 'slow node')
  | ('attention worker loss' | 'attention worker replacement')
  | ('conductor restart' | 'gManager restart' | 'two gManagers at once')
  | ('suspension' | 'store outage' | 'store loss');

/** Numbers of injected faults. */
export type FaultCounts = Map<FaultName, number>;

export function countFault(counts: FaultCounts, name: FaultName): void {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}

/** A fault with these fields. Without times and ratio it never occurs. */
export function fault(kind: FaultKind, fields: Partial<Fault>): Fault {
  const none = { ratio: 0, byUs: 0, atUs: undefined, everyUs: undefined, forUs: Number.POSITIVE_INFINITY };
  return { ...none, instances: undefined, factor: 4, kind, ...fields };
}

const units: Readonly<Record<string, number>> = { ms: 1_000, s: 1_000_000, m: 60_000_000, h: 3_600_000_000 };

/** Required and optional fields of each kind. */
const fieldsOf: Readonly<
  Record<FaultKind, { readonly required: readonly string[]; readonly optional: readonly string[] }>
> = {
  loss: { required: ['ratio'], optional: [] },
  duplication: { required: ['ratio'], optional: [] },
  delay: { required: ['ratio', 'by'], optional: [] },
  crash: { required: [], optional: ['instance', 'at', 'every', 'for'] },
  worker: { required: [], optional: ['instance', 'at', 'every', 'for'] },
  partition: { required: ['for'], optional: ['instance', 'at', 'every'] },
  slow: { required: ['for'], optional: ['instance', 'at', 'every', 'factor'] },
  conductor: { required: [], optional: ['at', 'every'] },
  gmanager: { required: [], optional: ['at', 'every'] },
};

/** Text such as `crash:instance=2,at=60s,for=30s` or `loss:ratio=0.01`. @throws Error of one line that names what is wrong */
export function parseFault(text: string): Fault {
  const [name, rest = ''] = splitOnce(text, ':');
  const kind = faultKinds.find((known) => known === name);
  if (kind === undefined) throw new Error(`Cannot inject ${name}: there are ${faultKinds.join(', ')}: ${text}`);
  const given = new Map(rest === '' ? [] : rest.split(',').map((field) => splitOnce(field, '=')));
  checkFields(kind, given, text);
  const time = (field: string) => (given.has(field) ? timeUs(given.get(field) ?? '', text) : undefined);
  const number = (field: string, min: number, max: number) =>
    given.has(field) ? numberOf(given.get(field) ?? '', min, max, text) : undefined;
  return {
    kind,
    ratio: number('ratio', 0, 1) ?? 0,
    byUs: time('by') ?? 0,
    atUs: time('at'),
    everyUs: time('every'),
    forUs: time('for') ?? Number.POSITIVE_INFINITY,
    instances: given
      .get('instance')
      ?.split('+')
      .map((one) => numberOf(one, 0, 65_535, text)),
    factor: number('factor', 1, 1_000_000) ?? 4,
  };
}

function checkFields(kind: FaultKind, given: ReadonlyMap<string, string | undefined>, text: string): void {
  const { required, optional } = fieldsOf[kind];
  for (const field of given.keys())
    if (!required.includes(field) && !optional.includes(field))
      throw new Error(`Cannot inject ${kind}: ${field} is none of ${[...required, ...optional].join(', ')}: ${text}`);
  for (const field of required)
    if (!given.has(field)) throw new Error(`Cannot inject ${kind}: it requires ${field}: ${text}`);
  if (optional.includes('at') && given.has('at') === given.has('every'))
    throw new Error(`Cannot inject ${kind}: it requires either at (once) or every (again and again): ${text}`);
}

function splitOnce(text: string, mark: string): [string, string | undefined] {
  const at = text.indexOf(mark);
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)];
}

function timeUs(value: string, text: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(value) ?? [];
  if (digits === undefined || unit === undefined)
    throw new Error(`Cannot inject a fault: write times as 200ms, 60s, 5m or 1h: ${value}: ${text}`);
  return Math.round(Number(digits) * (units[unit] ?? 1));
}

function numberOf(value: string, min: number, max: number, text: string): number {
  const number = Number(value);
  if (value === '' || !(number >= min && number <= max))
    throw new Error(`Cannot inject a fault: ${value} is not a number from ${min} to ${max}: ${text}`);
  return number;
}
