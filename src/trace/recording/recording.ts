// The format of recorded servers: JSON lines of Mooncake's format with the settings of the cluster and what happened.

import type { EngineKind, InstanceRole } from '../../core/protocol/instance-report.ts';
import type { RequestState } from '../../core/protocol/request-trace.ts';

/** Raised when a reader of the last version would misread a file. */
export const recordingVersion = 1;

/** The first line: what all instances share. */
export interface RecordingHeader {
  readonly recording: number;
  /** Of `timestamp` in the lines of requests. */
  readonly timeUnit: 'ms';
  /** Start of the recording, ISO 8601; times in the file count from it. */
  readonly started: string;
  readonly model: string;
  /** Tokens of a block: `hash_ids` name whole blocks. */
  readonly blockTokens: number;
  /** Keys and values of one token in all layers. */
  readonly kvTokenBytes: number;
  readonly layers: number;
  readonly heads: number;
  readonly headDim: number;
  /** Options of the server that the simulator has too, in the notation of its flags. */
  readonly settings: Readonly<Record<string, unknown>>;
}

/** An instance as it reports itself. Instances are numbered by their first appearance. */
export interface RecordedInstance {
  readonly name: string;
  readonly role: InstanceRole;
  /** An external engine; undefined: an own instance. */
  readonly engine?: EngineKind | undefined;
  /** The engine schedules by the priority of requests. */
  readonly takesPriorities?: boolean | undefined;
  /** Tokens of a block of the engine: it finds prefixes of whole blocks. */
  readonly engineBlockTokens?: number | undefined;
  /** Blocks of the KV pool, of `blockTokens` of the header; undefined: it reports none. */
  readonly blocks?: number | undefined;
  /** Blocks of the receive buffers, of host memory and of SSD. */
  readonly receiveBlocks?: number | undefined;
  readonly hostBlocks?: number | undefined;
  readonly ssdBlocks?: number | undefined;
  /** Learned coefficients of the step time (`StepCost`). */
  readonly stepCost?: readonly number[] | undefined;
  /** Measured rates of sent pages and of SSD reads; undefined: too little was moved. */
  readonly bytesPerSecond?: number | undefined;
  readonly ssdBytesPerSecond?: number | undefined;
}

/** A line of all instances, whenever they have changed. */
export interface RecordedInstances {
  readonly atMs: number;
  readonly instances: readonly RecordedInstance[];
}

/**
 * A step of an instance: its number, microseconds from the start of the recording, duration, and the shape (`StepShape`):
 * rows, their keys, sequences that run a single row, the keys of those, and rows with logits. Last the time from its end
 * until the gateway received its outputs; negative if the clocks differ.
 */
export type RecordedStepRow = readonly [
  instance: number,
  startedUs: number,
  us: number,
  rows: number,
  keyRows: number,
  decodeRows: number,
  decodeKeys: number,
  logitRows: number,
  deliveryUs: number,
];

/**
 * A report of an instance: when the gateway received it, in microseconds from the start, and what it states: predictions use that
 * from then on. Recordings of earlier releases have the times alone.
 */
export type RecordedReport = readonly [instance: number, receivedUs: number, state?: ReportedState];

/** What predictions read of a report. Undefined members: nothing is known yet. */
export interface ReportedState {
  /** Learned coefficients of the step time (`StepCost`). */
  readonly stepCost?: readonly number[];
  /** Share of steps that attention for debtors takes, in thousandths. */
  readonly servedAttentionPermille?: number;
  /** Running requests, and the number and time of all steps so far: how soon the instance answers others. */
  readonly running: number;
  readonly steps: number;
  readonly stepMsTotal: number;
  /** Pages sent, and SSD reads: their bytes and time. */
  readonly sentBytes?: number;
  readonly sentSeconds?: number;
  readonly ssdReadBytes?: number;
  readonly ssdReadSeconds?: number;
  /** Measured rates of links to other instances. */
  readonly links?: readonly (readonly [to: number, bytesPerSecond: number])[];
}

/** A line of reports. */
export interface RecordedReports {
  readonly reports: readonly RecordedReport[];
}

/** A line of steps that have ended. */
export interface RecordedStepRows {
  readonly steps: readonly RecordedStepRow[];
}

/**
 * An instance as placement saw it: its number, requests placed on it, leading tokens of the prompt in its cache, and the
 * predicted microseconds until the prefill starts and of the prefill.
 */
export type RecordedCandidate = readonly [
  instance: number,
  requests: number,
  matchedTokens: number,
  queueUs: number,
  prefillUs: number,
];

/** What happened to a request. Instances by number; times in milliseconds since its arrival, undefined where it did not get so far. */
export interface RecordedOutcome {
  readonly outcome: Extract<RequestState, 'finished' | 'failed' | 'refused' | 'cancelled'>;
  /** The reason of a refusal, the code of a failure, or why the output ended. */
  readonly reason?: string | undefined;
  readonly maxTokens: number;
  /** The last attempt: instances that compute the prompt and the output. */
  readonly instance?: number | undefined;
  readonly decodeInstance?: number | undefined;
  readonly attempts: number;
  readonly group?: readonly number[] | undefined;
  readonly fetchedFrom?: number | undefined;
  readonly fetchedTokens?: number | undefined;
  /** The chosen instance and those with the least predicted times; undefined: recorded by an earlier release. */
  readonly candidates?: readonly RecordedCandidate[] | undefined;
  /** A decode instance computed the prompt inline. */
  readonly inline?: boolean | undefined;
  readonly cachedTokens?: number | undefined;
  /** When its instance received it, and its decode instance the prompt; undefined in recordings of earlier releases. */
  readonly receivedMs?: number | undefined;
  readonly decodeReceivedMs?: number | undefined;
  /** When the instance requested the fetched prefix; undefined in recordings of earlier releases. */
  readonly prefixStartMs?: number | undefined;
  /** When the fetched prefix was there, or, with `prefixMissing`, was missing or given up. */
  readonly prefixMs?: number | undefined;
  readonly prefixMissing?: boolean | undefined;
  /** Begin of the first step with rows of the request, and of the first one at its decode instance, on their clocks. */
  readonly firstStepMs?: number | undefined;
  readonly decodeStepMs?: number | undefined;
  /** Begin and end of the prefill; the hand-off lasts from its end to the first token. */
  readonly startedMs?: number | undefined;
  readonly prefilledMs?: number | undefined;
  readonly firstTokenMs?: number | undefined;
  readonly endMs: number;
  /** Of the gaps between tokens: the mean of the longest tenth, the mean, and the longest. */
  readonly tbtMs?: number | undefined;
  readonly tpotMs?: number | undefined;
  readonly gapMsMax?: number | undefined;
  readonly predictedTtftMs?: number | undefined;
  readonly predictedTbtMs?: number | undefined;
}

/** A request of a recording as its line has it. */
export interface RecordedLine extends RecordedOutcome {
  /** Milliseconds since the start of the recording. */
  readonly timestamp: number;
  readonly inputLength: number;
  /** At least 1; of a refused request its `maxTokens`. */
  readonly outputLength: number;
  /** Keyed hashes of the whole blocks of the prompt, and of those that the output completed: whole numbers below 2^53. */
  readonly hashIds: readonly number[];
  readonly outputHashIds?: readonly number[] | undefined;
  readonly sloClass?: string | undefined;
  /** An opaque label: a keyed hash of its name. */
  readonly tenant?: string | undefined;
  readonly priority?: number | undefined;
  readonly batch?: boolean | undefined;
}

/** A line without its line break; its members are in snake case, and undefined ones are left out. */
export function recordingLine(
  line:
    | RecordingHeader
    | RecordedInstances
    | RecordedStepRows
    | RecordedReports
    | RecordedLine
    | { readonly omitted: number },
): string {
  if ('reports' in line) {
    const reports = line.reports.map(([i, us, state]) => (state === undefined ? [i, us] : [i, us, snakeCased(state)]));
    return JSON.stringify({ reports });
  }
  if (!('instances' in line)) return JSON.stringify(snakeCased(line));
  return JSON.stringify(snakeCased({ ...line, instances: line.instances.map(snakeCased) }));
}

function snakeCased(object: object): object {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [toSnakeCase(name), value]));
}

function toSnakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** The object with the names of its members in camel case. */
export function camelCased(object: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const named = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [named(name), value]));
}

/** True for the first line of a recording. */
export function isRecordingLine(text: string): boolean {
  return text.includes('"recording":');
}
