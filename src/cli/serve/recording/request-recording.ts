// Records what a server does: arrivals, lengths, keyed block hashes, placements and times of its requests, without text.

import { HashChain, rootDigest } from '../../../core/kvcache/block-hash.ts';
import type { RequestId } from '../../../core/protocol/ids.ts';
import type {
  ClusterView,
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
} from '../../../core/protocol/ports.ts';
import type { PlacementCandidate, PlacementTrace, RequestTrace } from '../../../core/protocol/request-trace.ts';
import { requestIdOf } from '../../../core/router/attempts.ts';
import type { StepSource } from '../../../runtime/threads/conductor-driver.ts';
import type { StepTrace } from '../../../runtime/threads/thread-protocol.ts';
import { meanOfLongest } from '../../../sim/report/longest-gaps.ts';
import type {
  RecordedCandidate,
  RecordedInstance,
  RecordedLine,
  RecordedReport,
  RecordedStepRow,
} from '../../../trace/recording/recording.ts';
import { digestWords } from '../../../util/blake2s.ts';
import { Int32List } from '../../../util/int32-list.ts';
import { pageTokens } from '../../../util/step.ts';
import { recordedInstance, reportedState } from './recorded-instance.ts';

type Cluster = InferencePort & ClusterView & StepSource;
type Sink = (event: GenerationEvent) => void;

export interface RequestRecordingOptions {
  readonly cluster: Cluster;
  /** Four random words that key all hashes: hashes of different recordings cannot be compared. */
  readonly key: Uint32Array;
  /** Clock of the cluster's request traces, in microseconds. */
  readonly nowUs: () => number;
  /** Clock of steps, in microseconds since 1970. */
  readonly epochUs: () => number;
  readonly onSteps: (steps: readonly RecordedStepRow[]) => void;
  readonly onReports: (reports: readonly RecordedReport[]) => void;
  readonly onRequest: (line: RecordedLine) => void;
  readonly onInstances: (atMs: number, instances: readonly RecordedInstance[]) => void;
}

/** A request that has not ended. */
interface Running {
  readonly tokens: Int32List;
  readonly chain: HashChain;
  readonly promptTokens: number;
  lastUs: number | undefined;
  readonly gapUs: number[];
  /** By instance: when it received the request, or the prompt that was handed off, from the start of the recording. */
  readonly receivedUs: Map<number, number>;
  firstStep: FirstStep | undefined;
  prefix: FetchedPrefix | undefined;
}

/** The last attempt. */
type Placed = Pick<RecordedLine, 'attempts' | 'instance' | 'decodeInstance'> & Partial<RecordedLine>;

/** The last prefix fetch, from the start of the recording. */
interface FetchedPrefix {
  readonly startedUs: number;
  readonly endedUs: number;
  readonly isMissing: boolean;
}

/** The first steps of an attempt, at the instance of its prompt and at another one, from the start of the recording. */
interface FirstStep {
  readonly attempt: RequestId;
  readonly place: number;
  readonly startedUs: number;
  decodeStepUs: number | undefined;
}

/** Root of hashes that are no block identities. */
const root = { modelFingerprint: 'recording', weightForm: '', inputForm: '', kvType: '', rope: '' };
/** Steps, and reports, of a line. */
const stepsMax = 64;
/** Candidates of a placement that are written. */
const candidatesMax = 8;
/** Learned values alone are written this seldom: they change with every step. */
const learnedMs = 60_000;

/** Memory is bounded by the running requests, and by the instances that have ever joined: each keeps its number. */
export class RequestRecording {
  /** The port of the cluster whose requests are recorded. */
  readonly port: InferencePort;
  readonly #options: RequestRecordingOptions;
  readonly #startUs: number;
  readonly #running = new Map<RequestId, Running>();
  /** Numbers of instances by name, and the last state of each. */
  readonly #numbers = new Map<string, number>();
  #instances: readonly RecordedInstance[] = [];
  readonly #startEpochUs: number;
  /** Steps that are not written yet. */
  #steps: RecordedStepRow[] = [];
  #reports: RecordedReport[] = [];
  #writtenMs = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(options: RequestRecordingOptions) {
    const { cluster } = options;
    this.#options = options;
    this.#startUs = options.nowUs();
    this.#startEpochUs = options.epochUs();
    cluster.onEnded((trace) => this.#ended(trace));
    cluster.onSteps((instance, steps) => this.#stepped(instance, steps));
    cluster.onReports((instance, snapshot) => this.#reported(instance, snapshot));
    this.port = {
      submit: (request, sink) => this.#submit(request, sink),
      cancel: (id) => cluster.cancel(id),
      overload: (ahead) => cluster.overload(ahead),
      readiness: () => cluster.readiness(),
      snapshot: () => cluster.snapshot(),
      instances: () => cluster.instances(),
      drain: () => cluster.drain(),
    };
  }

  /** Writes the steps and reports so far. To be called regularly. */
  flushSteps(): void {
    if (this.#steps.length > 0) this.#options.onSteps(this.#steps);
    if (this.#reports.length > 0) this.#options.onReports(this.#reports);
    [this.#steps, this.#reports] = [[], []];
  }

  /** Writes the instances if they have changed. To be called regularly. @param always write learned values too */
  observeInstances(always = false): void {
    const { cluster, nowUs, onInstances } = this.#options;
    const roles = cluster.roles();
    // In the order of the cluster: of equal instances, placement takes the first.
    const reported = cluster.instances().map((snapshot, i) => recordedInstance(snapshot, roles[i] ?? 'mixed', i));
    for (const { name } of reported) this.#numberOf(name);
    const byName = new Map([...this.#instances, ...reported].map((state) => [state.name, state]));
    const states = [...this.#numbers.keys()].map((name) => byName.get(name) ?? { name, role: 'mixed' as const });
    const atMs = (nowUs() - this.#startUs) / 1000;
    const isNew = JSON.stringify(states.map(fixedOf)) !== JSON.stringify(this.#instances.map(fixedOf));
    const isLearned = JSON.stringify(states) !== JSON.stringify(this.#instances);
    if (!isNew && !(isLearned && (always || atMs - this.#writtenMs >= learnedMs))) return;
    this.#instances = states;
    this.#writtenMs = atMs;
    onInstances(atMs, states);
  }

  /** Requests that end later are not recorded. */
  close(): void {
    this.observeInstances(true);
    this.flushSteps();
    this.#closed = true;
    this.#running.clear();
  }

  #submit(request: GenerationRequest, sink: Sink): void {
    const { id, prompt, salt } = request;
    const chain = new HashChain(rootDigest(root, salt, this.#options.key), Math.ceil(prompt.length / pageTokens) + 1);
    const tokens = Int32List.from(prompt, pageTokens);
    const unseen = { lastUs: undefined, receivedUs: new Map(), firstStep: undefined, prefix: undefined };
    if (!this.#closed) this.#running.set(id, { tokens, chain, promptTokens: prompt.length, gapUs: [], ...unseen });
    this.#options.cluster.submit(request, (event) => {
      if (event.kind === 'tokens') this.#received(id, event.tokens);
      // A request that the cluster never accepted has no trace.
      else if (event.kind === 'failed') this.#running.delete(id);
      sink(event);
    });
  }

  #received(id: RequestId, tokens: Int32Array): void {
    const running = this.#running.get(id);
    if (running === undefined) return;
    const nowUs = this.#options.nowUs();
    for (const token of tokens) {
      running.tokens.push(token);
      if (running.lastUs !== undefined) running.gapUs.push(nowUs - running.lastUs);
      running.lastUs = nowUs;
    }
  }

  #stepped(instance: number, steps: readonly StepTrace[]): void {
    const place = this.#placeOf(instance);
    if (place === undefined || this.#closed) return;
    const receivedUs = this.#options.epochUs();
    for (const { kind, startedUs, endedUs, aborted, rows, received = [] } of steps) {
      for (const [id, atUs] of received) this.#arrived(id, place, atUs);
      if (kind === 'fetch') this.#fetched(rows[0]?.[0], startedUs, endedUs, aborted);
      if (kind !== 'step' || aborted || rows.length === 0) continue;
      const shape = shapeOf(rows, (id) => this.#running.get(requestIdOf(id))?.promptTokens);
      const began = Math.round(startedUs - this.#startEpochUs);
      const us = Math.max(1, Math.round(endedUs - startedUs));
      for (const [id] of rows) this.#began(id, place, began);
      this.#steps.push([place, began, us, ...shape, Math.round(receivedUs - endedUs)]);
    }
    if (this.#steps.length >= stepsMax) this.flushSteps();
  }

  #reported(instance: number, snapshot: InstanceSnapshot): void {
    const place = this.#placeOf(instance);
    if (place === undefined || this.#closed) return;
    const state = reportedState(snapshot, (to) => this.#placeOf(to));
    this.#reports.push([place, Math.round(this.#options.nowUs() - this.#startUs), state]);
    if (this.#reports.length >= stepsMax) this.flushSteps();
  }

  /** An attempt, or its prompt, reached an instance. */
  #arrived(attempt: RequestId, place: number, atUs: number): void {
    const running = this.#running.get(requestIdOf(attempt));
    running?.receivedUs.set(place, Math.round(atUs - this.#startEpochUs));
  }

  /** Times since 1970. */
  #fetched(attempt: RequestId | undefined, startedUs: number, endedUs: number, isMissing: boolean): void {
    const running = attempt === undefined ? undefined : this.#running.get(requestIdOf(attempt));
    const since = (us: number) => Math.round(us - this.#startEpochUs);
    if (running !== undefined) running.prefix = { startedUs: since(startedUs), endedUs: since(endedUs), isMissing };
  }

  /** A step with rows of this attempt began. */
  #began(attempt: RequestId, place: number, startedUs: number): void {
    const running = this.#running.get(requestIdOf(attempt));
    if (running === undefined) return;
    const { firstStep } = running;
    if (firstStep?.attempt !== attempt) running.firstStep = { attempt, place, startedUs, decodeStepUs: undefined };
    else if (firstStep.place !== place) firstStep.decodeStepUs ??= startedUs;
  }

  #ended(trace: RequestTrace): void {
    const running = this.#running.get(trace.id);
    if (running === undefined) return;
    this.#running.delete(trace.id);
    this.#options.onRequest(this.#lineOf(trace, running));
  }

  #lineOf(trace: RequestTrace, running: Running): RecordedLine {
    const { submittedUs, sloClass, tenant, priority, batch, end } = trace;
    const isRefused = trace.state === 'refused';
    const outputLength = Math.max(1, isRefused ? trace.maxTokens : trace.outputTokens);
    const placement = this.#placementOf(trace.placements);
    const { instance, decodeInstance } = placement;
    const receivedMs = (at: number | undefined) =>
      at === undefined ? undefined : msSince(submittedUs - this.#startUs, running.receivedUs.get(at));
    return {
      timestamp: (submittedUs - this.#startUs) / 1000,
      inputLength: trace.promptTokens,
      outputLength,
      ...hashesOf(running),
      sloClass,
      tenant: tenant === undefined ? undefined : this.#labelOf(tenant),
      priority: priority === 0 ? undefined : priority,
      batch: batch ? true : undefined,
      outcome: isOutcome(trace.state) ? trace.state : 'failed',
      reason: end?.kind === 'failed' ? (end.cause?.reason ?? end.code) : end?.reason,
      maxTokens: trace.maxTokens,
      ...placement,
      receivedMs: receivedMs(instance),
      decodeReceivedMs: decodeInstance === instance ? undefined : receivedMs(decodeInstance),
      prefixStartMs: msSince(submittedUs - this.#startUs, running.prefix?.startedUs),
      prefixMs: msSince(submittedUs - this.#startUs, running.prefix?.endedUs),
      prefixMissing: running.prefix?.isMissing === true ? true : undefined,
      firstStepMs: msSince(submittedUs - this.#startUs, running.firstStep?.startedUs),
      decodeStepMs: msSince(submittedUs - this.#startUs, running.firstStep?.decodeStepUs),
      ...timesOf(trace, running.gapUs),
    };
  }

  #placementOf(placements: readonly PlacementTrace[]): Placed {
    const last = placements.at(-1);
    const attempts = placements.length;
    if (last === undefined) return { attempts };
    const { instance, decodeAt = instance, group, fetchedFrom, fetchedTokens, inline, predicted } = last;
    return {
      attempts,
      instance: this.#placeOf(instance),
      decodeInstance: this.#placeOf(decodeAt),
      group: group?.map((member) => this.#placeOf(member) ?? 0),
      fetchedFrom: this.#placeOf(fetchedFrom),
      fetchedTokens: fetchedTokens === 0 ? undefined : fetchedTokens,
      inline: inline ? true : undefined,
      candidates: this.#candidatesOf(last),
      predictedTtftMs: finiteMs(predicted?.ttftUs),
      predictedTbtMs: finiteMs(predicted?.tbtUs),
    };
  }

  #candidatesOf({ candidates, instance }: PlacementTrace): readonly RecordedCandidate[] {
    const timeUs = (each: PlacementCandidate) => (each.instance === instance ? -1 : each.queueUs + each.prefillUs);
    const first = [...candidates].sort((a, b) => timeUs(a) - timeUs(b)).slice(0, candidatesMax);
    return first.flatMap(({ instance: index, requests, matchedTokens, queueUs, prefillUs }) => {
      const place = this.#placeOf(index);
      return place === undefined || !Number.isFinite(queueUs + prefillUs)
        ? []
        : [[place, requests, matchedTokens, Math.round(queueUs), Math.round(prefillUs)] as const];
    });
  }

  /** The number of the instance at this place of the cluster. */
  #placeOf(index: number | undefined): number | undefined {
    if (index === undefined) return undefined;
    if (this.#numbers.size === 0) this.observeInstances();
    return this.#numberOf(this.#options.cluster.instances()[index]?.name ?? String(index));
  }

  #numberOf(name: string): number {
    const known = this.#numbers.get(name) ?? this.#numbers.size;
    this.#numbers.set(name, known);
    return known;
  }

  #labelOf(tenant: string): string {
    const [word = 0] = rootDigest(root, `tenant ${tenant}`, this.#options.key);
    return `tenant-${(word >>> 0).toString(16).padStart(8, '0')}`;
  }
}

/** At least 0: where the clock of the instance is behind, a step would begin before the arrival. */
function msSince(arrivalUs: number, stepUs: number | undefined): number | undefined {
  return stepUs === undefined ? undefined : Math.max(0, Math.round(stepUs - arrivalUs) / 1000);
}

function isOutcome(state: RequestTrace['state']): state is RecordedLine['outcome'] {
  return state === 'finished' || state === 'failed' || state === 'refused' || state === 'cancelled';
}

/** Rows, their keys, single rows, the keys of those, and rows with logits, of a step's `[request, first token, rows]`. */
function shapeOf(
  rows: StepTrace['rows'],
  promptTokensOf: (id: RequestId) => number | undefined,
): readonly [rows: number, keyRows: number, decodeRows: number, decodeKeys: number, logitRows: number] {
  let [all, keyRows, decodeRows, decodeKeys, logitRows] = [0, 0, 0, 0, 0];
  for (const [id, from, count] of rows) {
    all += count;
    keyRows += count * from + (count * (count + 1)) / 2;
    if (count === 1) {
      decodeRows++;
      decodeKeys += from + 1;
    }
    if (count === 1 || from + count >= (promptTokensOf(id) ?? Number.POSITIVE_INFINITY)) logitRows++;
  }
  return [all, keyRows, decodeRows, decodeKeys, logitRows];
}

/** The part of an instance's state that is not learned. */
function fixedOf({ name, role, engine, blocks, receiveBlocks, hostBlocks, ssdBlocks }: RecordedInstance): object {
  return { name, role, engine, blocks, receiveBlocks, hostBlocks, ssdBlocks };
}

/** Hashes of whole blocks whose keys and values were computed. */
function hashesOf({ tokens, chain, promptTokens }: Running): Pick<RecordedLine, 'hashIds' | 'outputHashIds'> {
  const computed = tokens.length > promptTokens ? tokens.length - 1 : promptTokens;
  chain.extend(tokens.raw, computed);
  const all = Array.from({ length: chain.blocks }, (_, i) => wordsAsNumber(chain.words, i * digestWords));
  const full = Math.floor(promptTokens / pageTokens);
  return { hashIds: all.slice(0, full), outputHashIds: all.length > full ? all.slice(full) : undefined };
}

/** 53 bits of a digest. */
function wordsAsNumber(words: Uint32Array, at: number): number {
  return words[at] * 2 ** 21 + (words[at + 1] >>> 11);
}

function timesOf(trace: RequestTrace, gapUs: readonly number[]) {
  const { submittedUs, startedUs, prefilledUs, firstTokenUs, endedUs = submittedUs, cachedTokens } = trace;
  const since = (us: number | undefined) => (us === undefined ? undefined : (us - submittedUs) / 1000);
  const gaps = gapUs.length;
  const sumUs = gapUs.reduce((sum, us) => sum + us, 0);
  return {
    cachedTokens,
    startedMs: since(startedUs),
    prefilledMs: since(prefilledUs ?? firstTokenUs),
    firstTokenMs: since(firstTokenUs),
    endMs: since(endedUs) ?? 0,
    tbtMs: gaps === 0 ? undefined : Math.round(meanOfLongest(Float64Array.from(gapUs), gaps)) / 1000,
    tpotMs: gaps === 0 ? undefined : Math.round(sumUs / gaps) / 1000,
    gapMsMax: gaps === 0 ? undefined : gapUs.reduce((most, us) => Math.max(most, us), 0) / 1000,
  };
}

function finiteMs(us: number | undefined): number | undefined {
  return us === undefined || !Number.isFinite(us) ? undefined : Math.round(us) / 1000;
}
