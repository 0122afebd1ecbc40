// Reads a recording: settings, instances, and requests by arrival. Lines are in the order in which requests ended.

import type { TimedStep } from '../../core/cost/linear-cost.ts';
import { engineKinds } from '../../core/protocol/instance-report.ts';
import { BlockGroups } from '../block-groups.ts';
import { labelsOf, parseObject, type Row, tokensOf } from '../mooncake.ts';
import { shown, TraceError, type TraceRequest } from '../request.ts';
import {
  camelCased,
  type RecordedInstance,
  type RecordedOutcome,
  type RecordingHeader,
  type ReportedState,
  recordingVersion,
} from './recording.ts';

export interface RecordedRequest {
  readonly request: TraceRequest;
  readonly recorded: RecordedOutcome;
}

export interface Recording {
  readonly header: RecordingHeader;
  /** Every instance that has served, as it last reported itself, in its first role. */
  readonly instances: readonly RecordedInstance[];
  /** By arrival; `index` is the place. */
  readonly requests: readonly RecordedRequest[];
  /** (instances): their steps by time. */
  readonly steps: readonly (readonly TimedRecordedStep[])[];
  /** (instances): their reports to the gateway, by time; none: recorded by an earlier release, or by threads. */
  readonly reports: readonly (readonly TimedReport[])[];
  /** Lines that the server could not write in time. */
  readonly omitted: number;
}

/** External engines served the requests. */
export function isOfEngines({ instances }: Recording): boolean {
  return instances.some(({ engine }) => engine !== undefined);
}

/** The size of the blocks of all engines that reported any; undefined: they have several, or a smaller one than the recording. */
export function engineBlockTokens({ header, instances }: Recording): number | undefined {
  const reported = instances.filter(({ blocks }) => blocks !== undefined);
  const [size, ...others] = new Set(reported.map((each) => each.engineBlockTokens));
  return size === undefined || others.length > 0 || size % header.blockTokens !== 0 ? undefined : size;
}

/** What an instance reported, and when the gateway received it. */
export interface TimedReport {
  readonly receivedUs: number;
  /** Undefined in recordings of earlier releases. */
  readonly state: ReportedState | undefined;
}

/** A step, its start from the start of the recording, and when the gateway received its outputs. */
export interface TimedRecordedStep extends TimedStep {
  readonly startedUs: number;
  /** Undefined in recordings of earlier releases. */
  readonly deliveredUs: number | undefined;
  /** Of `us`, the time before the step was planned; undefined: none. */
  readonly gapUs?: number | undefined;
}

const stepNumbers = 9;
/** Earlier releases did not write the time of delivery. */
const stepNumbersMin = 8;
/** Instances are numbered from 0. */
const instancesMax = 65_536;
/** The longest step that is read: longer ones would hide all that follow. */
const stepUsMax = 3_600e6;

/** Of `RecordedCandidate`. */
const candidateNumbers = 5;

const outcomes = ['finished', 'failed', 'refused', 'cancelled'] as const;
/** Members of a request that it may lack: instances by number, and tokens. */
const optionalCounts = ['instance', 'decode_instance', 'fetched_from', 'fetched_tokens', 'cached_tokens'] as const;
const roles = ['prefill', 'decode', 'mixed', 'store'] as const;

/** Holds all requests until the end, since they are sorted by arrival. */
export class RecordingReader {
  readonly #header: RecordingHeader;
  readonly #blockTokens: number;
  readonly #blocks: BlockGroups;
  readonly #instances: RecordedInstance[] = [];
  readonly #requests: RecordedRequest[] = [];
  readonly #steps: TimedRecordedStep[][] = [];
  readonly #reports: TimedReport[][] = [];
  #omitted = 0;

  /** @param blockTokens of the requests: a multiple of those of the file, which are used unless given @throws TraceError */
  constructor(first: string, line: number, blockTokens?: number) {
    this.#header = headerOf(parseObject(first, line), line);
    const own = this.#header.blockTokens;
    this.#blockTokens = blockTokens ?? own;
    if (this.#blockTokens % own !== 0)
      throw new TraceError(
        line,
        `hash_ids are of ${own} tokens: use --block-tokens ${own} or a multiple, not ${blockTokens}`,
      );
    this.#blocks = new BlockGroups(this.#blockTokens / own);
  }

  /** @throws TraceError */
  take(text: string, line: number): void {
    const row = parseObject(text, line);
    if (row.instances !== undefined) this.#takeInstances(row, line);
    else if (row.steps !== undefined) this.#takeSteps(row.steps, line);
    else if (row.reports !== undefined) this.#takeReports(row.reports, line);
    else if (row.omitted !== undefined) this.#omitted += countOf(row, 'omitted', line);
    else this.#requests.push({ request: this.#requestOf(row, line), recorded: outcomeOf(row, line) });
  }

  end(): Recording {
    const size = this.#blockTokens / this.#header.blockTokens;
    const inOrder = this.#requests.sort((a, b) => a.request.arrivalUs - b.request.arrivalUs);
    return {
      header: { ...this.#header, blockTokens: this.#blockTokens },
      instances: size === 1 ? this.#instances : this.#instances.map((each) => inLargerBlocks(each, size)),
      steps: this.#instances.map((_, i) => withoutOverlap(this.#steps[i] ?? [])),
      reports: this.#instances.map((_, i) => (this.#reports[i] ?? []).sort((a, b) => a.receivedUs - b.receivedUs)),
      requests: inOrder.map(({ request, recorded }, index) => ({ request: { ...request, index }, recorded })),
      omitted: this.#omitted,
    };
  }

  #takeInstances({ instances }: Row, line: number): void {
    if (!Array.isArray(instances))
      throw new TraceError(line, `instances is ${shown(instances)}: a list of instances expected`);
    for (const [i, given] of instances.entries()) {
      const instance = instanceOf(given, i, line);
      const role = this.#instances[i]?.role ?? instance.role;
      this.#instances[i] = { ...this.#instances[i], ...instance, role };
    }
  }

  #takeSteps(rows: unknown, line: number): void {
    if (!Array.isArray(rows)) throw new TraceError(line, `steps is ${shown(rows)}: a list of steps expected`);
    for (const [i, row] of rows.entries()) {
      const isValid = Array.isArray(row) && isStepLength(row.length) && row.every(Number.isSafeInteger);
      if (!isValid) throw new TraceError(line, `steps[${i}] is ${shown(row)}: ${stepNumbers} whole numbers expected`);
      const [instance, startedUs, us, rows, keyRows, decodeRows, decodeKeys, logitRows] = row as number[];
      const deliveryUs = (row as number[]).at(stepNumbersMin);
      const shape = { rows, keyRows, decodeRows, decodeKeys, logitRows };
      const counts = { instance, us, ...shape };
      for (const [field, value] of Object.entries(counts))
        if (value < 0) throw new TraceError(line, `${field} of steps[${i}] is ${value}: at least 0 expected`);
      if (us > stepUsMax)
        throw new TraceError(line, `us of steps[${i}] is ${us}: at most ${stepUsMax}, an hour, expected`);
      if (instance >= instancesMax)
        throw new TraceError(line, `instance of steps[${i}] is ${instance}: a number below ${instancesMax} expected`);
      this.#steps[instance] ??= [];
      const deliveredUs = deliveryUs === undefined ? undefined : startedUs + us + deliveryUs;
      this.#steps[instance].push({ startedUs, us: Math.max(1, us), shape, deliveredUs });
    }
  }

  #takeReports(rows: unknown, line: number): void {
    if (!Array.isArray(rows)) throw new TraceError(line, `reports is ${shown(rows)}: a list of reports expected`);
    for (const [i, row] of rows.entries()) {
      const isValid = Array.isArray(row) && isReportLength(row.length) && row.slice(0, 2).every((one) => isCount(one));
      if (!isValid || row[0] >= instancesMax)
        throw new TraceError(
          line,
          `reports[${i}] is ${shown(row)}: an instance below ${instancesMax}, its microseconds and its state expected`,
        );
      const [instance, receivedUs, state] = row as [number, number, unknown];
      this.#reports[instance] ??= [];
      this.#reports[instance].push({ receivedUs, state: state === undefined ? undefined : stateOf(state, i, line) });
    }
  }

  #requestOf(row: Row, line: number): TraceRequest {
    const { timestamp } = row;
    const arrivalUs = typeof timestamp === 'number' ? Math.round(timestamp * 1000) : -1;
    if (!(arrivalUs >= 0 && arrivalUs <= Number.MAX_SAFE_INTEGER))
      throw new TraceError(line, `timestamp is ${shown(timestamp)}: milliseconds from the start expected`);
    const inputTokens = tokensOf(row, 'input_length', line);
    const outputTokens = tokensOf(row, 'output_length', line);
    const size = this.#blockTokens;
    const own = this.#header.blockTokens;
    const prompt = hashesOf(row, 'hash_ids', Math.floor(inputTokens / own), line);
    // Keys and values of the last token are never computed.
    const computed = inputTokens + outputTokens - 1;
    const output = hashesOf(row, 'output_hash_ids', Math.floor(computed / own) - Math.floor(inputTokens / own), line);
    const full = Math.floor(inputTokens / size);
    const whole = Math.floor(((prompt.length + output.length) * own) / size);
    const blocks = this.#blocks.take(prompt, Math.ceil(inputTokens / size));
    const all = this.#blocks.take([...prompt, ...output].slice(0, (whole * size) / own), whole);
    const outputBlocks = whole > full ? { outputBlocks: all.slice(full) } : {};
    return { index: 0, arrivalUs, inputTokens, outputTokens, blocks, ...outputBlocks, ...labelsOf(row, line) };
  }
}

/** @param size blocks of the file in one block */
function inLargerBlocks(instance: RecordedInstance, size: number): RecordedInstance {
  const counts = (['blocks', 'receiveBlocks', 'hostBlocks', 'ssdBlocks'] as const).flatMap((name) => {
    const blocks = instance[name];
    return blocks === undefined ? [] : [[name, Math.floor(blocks / size)] as const];
  });
  return { ...instance, ...Object.fromEntries(counts) };
}

function isStepLength(length: number): boolean {
  return length >= stepNumbersMin && length <= stepNumbers;
}

function isReportLength(length: number): boolean {
  return length === 2 || length === 3;
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function stateOf(value: unknown, index: number, line: number): ReportedState {
  const refused = (field: string, given: unknown, expected: string) =>
    new TraceError(line, `state${field} of reports[${index}] is ${shown(given)}: ${expected} expected`);
  if (typeof value !== 'object' || value === null) throw refused('', value, 'an object');
  const { stepCost, links, ...numbers } = camelCased(value as Row);
  if (stepCost !== undefined && !isCoefficients(stepCost)) throw refused('.step_cost', stepCost, 'five numbers');
  const isLink = (link: unknown) =>
    Array.isArray(link) && link.length === 2 && isCount(link[0]) && Number.isFinite(link[1]) && link[1] > 0;
  if (links !== undefined && !(Array.isArray(links) && links.every(isLink)))
    throw refused('.links', links, 'lists of an instance and its bytes per second');
  for (const [field, number] of Object.entries({
    running: undefined,
    steps: undefined,
    stepMsTotal: undefined,
    ...numbers,
  }))
    if (typeof number !== 'number' || !(number >= 0)) throw refused(`.${field}`, number, 'a number of at least 0');
  return { ...numbers, stepCost, links } as unknown as ReportedState;
}

/** By start; a step that began before the end of another one is left out. */
function withoutOverlap(steps: readonly TimedRecordedStep[]): readonly TimedRecordedStep[] {
  const inOrder = [...steps].sort((a, b) => a.startedUs - b.startedUs);
  let endUs = Number.NEGATIVE_INFINITY;
  return inOrder.filter(({ startedUs, us }) => {
    if (startedUs < endUs) return false;
    endUs = startedUs + us;
    return true;
  });
}

function headerOf(row: Row, line: number): RecordingHeader {
  const { recording: version, settings, ...rest } = row;
  if (version !== recordingVersion)
    throw new TraceError(
      line,
      `recording is ${shown(version)}: this release reads version ${recordingVersion} of recordings`,
    );
  for (const field of ['block_tokens', 'layers', 'heads', 'head_dim', 'kv_token_bytes']) tokensOf(row, field, line);
  for (const field of ['started', 'model'])
    if (typeof row[field] !== 'string') throw new TraceError(line, `${field} is ${shown(row[field])}: a text expected`);
  if (typeof settings !== 'object' || settings === null || Array.isArray(settings))
    throw new TraceError(line, `settings is ${shown(settings)}: an object of options expected`);
  return { ...camelCased(rest), recording: version, settings } as unknown as RecordingHeader;
}

function instanceOf(value: unknown, index: number, line: number): RecordedInstance {
  const refused = (field: string, given: unknown, expected: string) =>
    new TraceError(line, `instances[${index}]${field} is ${shown(given)}: ${expected} expected`);
  if (typeof value !== 'object' || value === null) throw refused('', value, 'an object');
  const { name, role, engine, takesPriorities, stepCost, ...numbers } = camelCased(value as Row);
  if (typeof name !== 'string') throw refused('.name', name, 'a text');
  const known = roles.find((each) => each === role);
  if (known === undefined) throw refused('.role', role, `one of ${roles.join(', ')}`);
  const kind = engineKinds.find((each) => each === engine);
  if (engine !== undefined && kind === undefined) throw refused('.engine', engine, `one of ${engineKinds.join(', ')}`);
  if (takesPriorities !== undefined && typeof takesPriorities !== 'boolean')
    throw refused('.takes_priorities', takesPriorities, 'true or false');
  if (stepCost !== undefined && !isCoefficients(stepCost)) throw refused('.step_cost', stepCost, 'five numbers');
  for (const [field, number] of Object.entries(numbers))
    if (typeof number !== 'number' || !(number >= 0)) throw refused(`.${field}`, number, 'a number of at least 0');
  return {
    ...{ ...numbers, name, role: known },
    ...(kind !== undefined && { engine: kind, takesPriorities: takesPriorities === true }),
    ...(stepCost !== undefined && { stepCost }),
  };
}

function isCoefficients(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.length === 5 && value.every((one) => Number.isFinite(one));
}

function outcomeOf(row: Row, line: number): RecordedOutcome {
  const outcome = outcomes.find((each) => each === row.outcome);
  if (outcome === undefined)
    throw new TraceError(line, `outcome is ${shown(row.outcome)}: one of ${outcomes.join(', ')} expected`);
  for (const [field, value] of Object.entries(row))
    if (field.endsWith('_ms') && !(typeof value === 'number' && value >= 0))
      throw new TraceError(line, `${field} is ${shown(value)}: milliseconds of at least 0 expected`);
  for (const field of ['attempts', 'max_tokens']) countOf(row, field, line);
  checkCandidates(row.candidates, line);
  for (const field of optionalCounts) if (row[field] !== undefined) countOf(row, field, line);
  // Hashes are read as blocks: twice they would take most of the memory.
  const { hash_ids: _, output_hash_ids: __, ...own } = row;
  return { ...(camelCased(own) as unknown as RecordedOutcome), outcome };
}

function checkCandidates(value: unknown, line: number): void {
  if (value === undefined) return;
  const isCandidate = (each: unknown) =>
    Array.isArray(each) && each.length === candidateNumbers && each.every((one) => Number.isFinite(one) && one >= 0);
  if (!Array.isArray(value) || !value.every(isCandidate))
    throw new TraceError(
      line,
      `candidates is ${shown(value)}: lists of ${candidateNumbers} numbers of at least 0 expected`,
    );
}

function countOf(row: Row, field: string, line: number): number {
  const value = row[field];
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  throw new TraceError(line, `${field} is ${shown(value)}: a whole number of at least 0 expected`);
}

/** @param most number of hashes */
function hashesOf(row: Row, field: string, most: number, line: number): readonly number[] {
  const value = row[field] ?? [];
  if (!Array.isArray(value)) throw new TraceError(line, `${field} is ${shown(value)}: a list of hashes expected`);
  if (value.length > Math.max(0, most))
    throw new TraceError(line, `${field} has ${value.length} hashes: at most ${Math.max(0, most)} expected`);
  const wrong = value.findIndex((id) => !(Number.isSafeInteger(id) && id >= 0));
  if (wrong !== -1)
    throw new TraceError(line, `${field}[${wrong}] is ${shown(value[wrong])}: a whole number below 2^53 expected`);
  return value;
}
