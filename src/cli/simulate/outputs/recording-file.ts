// `kvasir simulate --recording`: frames and requests of a run, for the page of `kvasir dashboard`.
import type { InstanceIndex, RequestId } from '../../../core/protocol/ids.ts';
import type { InstanceRole } from '../../../core/protocol/instance-report.ts';
import type { InstanceSnapshot } from '../../../core/protocol/ports.ts';
import type {
  PlacementTrace,
  PromptBlockCounts,
  RequestTrace,
  StepTrace,
} from '../../../core/protocol/request-trace.ts';
import type { LengthRequest } from '../../../core/scheduler/executor/length-request.ts';
import type { LatencyBounds } from '../../../gateway/dashboard/class-latencies.ts';
import { type DashboardFrame, dashboardFrame } from '../../../gateway/dashboard/frame.ts';
import { requestRow } from '../../../gateway/dashboard/request-rows.ts';
import type { StepListener } from '../../../sim/engine/executor.ts';
import type { Simulation } from '../../../sim/engine/simulation.ts';
import type { EndEvent, RequestListener } from '../../../sim/engine/simulation-config.ts';

/** Frames of a recording, and rows of instances over all frames: about 25 MB. */
const [framesMax, rowsMax] = [400, 160_000];
const firstIntervalUs = 100_000;
/** Requests of a recording: the first ones. */
const requestsMax = 2_000;
/** Ended requests that the latencies of a frame follow from. */
const latenciesMax = 1_024;
const prefixesMax = 64;

export interface RecordingOptions {
  readonly model: string;
  /** Names by index, each with its role first. */
  readonly instances: readonly string[];
  readonly boundsOf: (sloClass: string) => LatencyBounds | undefined;
}

/** Takes frames at equal distances, and fewer of them as the run becomes longer. */
export class Recording implements RequestListener {
  readonly #options: RecordingOptions;
  readonly #placements = new Map<RequestId, PlacementTrace[]>();
  readonly #blocks = new Map<RequestId, PromptBlockCounts>();
  /** Steps of prompts, of the requests that become rows. */
  readonly #chunks = new Map<RequestId, StepTrace[]>();
  readonly #requests: RequestTrace[] = [];
  readonly #refusals = new Map<string, readonly [reason: string, sloClass: string, requests: number]>();
  /** The last ones that ended. */
  #ended: RequestTrace[] = [];
  #frames: DashboardFrame[] = [];
  #intervalUs = firstIntervalUs;
  #nextUs = 0;
  #simulation: Simulation | undefined;

  constructor(options: RecordingOptions) {
    this.#options = options;
  }

  placed(id: RequestId, placement: PlacementTrace): void {
    const known = this.#placements.get(id);
    if (known === undefined) this.#placements.set(id, [placement]);
    else known.push(placement);
  }

  /** Called before the instance receives the end of its step. */
  readonly addSteps: StepListener = (instance, startedUs, { rows, decodeRows }, stepUs) => {
    if (rows === decodeRows || this.#requests.length >= requestsMax) return;
    const endedUs = stepUs.reduce((sum, us) => sum + us, startedUs);
    const batch = this.#simulation?.cluster.instances[instance]?.inFlight ?? [];
    for (const { id, sequence } of batch) {
      if (sequence.planned <= 1) continue;
      const chunk: StepTrace = {
        ...{ kind: 'step', instance: instance as InstanceIndex, startedUs, endedUs },
        ...{ from: sequence.computed, rows: sequence.planned, aborted: false },
      };
      const known = this.#chunks.get(id);
      if (known === undefined) this.#chunks.set(id, [chunk]);
      else known.push(chunk);
    }
  };

  found(id: RequestId, blocks: PromptBlockCounts): void {
    this.#blocks.set(id, { ...blocks });
  }

  ended(id: RequestId, nowUs: number, request: LengthRequest, event: EndEvent): void {
    const found = { placements: this.#placements.get(id) ?? [], blocks: this.#blocks.get(id) };
    const trace = traceOf(id, nowUs, request, event, { ...found, steps: this.#chunks.get(id) ?? [] });
    this.#chunks.delete(id);
    this.#placements.delete(id);
    this.#blocks.delete(id);
    if (this.#requests.length < requestsMax) this.#requests.push(trace);
    this.#ended.push(trace);
    if (this.#ended.length > 2 * latenciesMax) this.#ended = this.#ended.slice(-latenciesMax);
    if (event.kind !== 'failed' || event.cause === undefined) return;
    const { reason } = event.cause;
    const key = `${reason} ${trace.sloClass ?? ''}`;
    this.#refusals.set(key, [reason, trace.sloClass ?? '', (this.#refusals.get(key)?.[2] ?? 0) + 1]);
  }

  /** Takes the frames that are due before `timeUs`. */
  advance(simulation: Simulation, timeUs: number): void {
    this.#simulation = simulation;
    const most = Math.max(8, Math.min(framesMax, Math.floor(rowsMax / this.#options.instances.length)));
    while (this.#nextUs < timeUs && timeUs !== Number.POSITIVE_INFINITY) {
      simulation.advance(this.#nextUs);
      this.#frames.push(this.#frame(simulation, this.#nextUs));
      this.#nextUs += this.#intervalUs;
      if (this.#frames.length < most) continue;
      this.#frames = this.#frames.filter((_, i) => i % 2 === 0);
      this.#intervalUs *= 2;
    }
  }

  /** The recording as the page reads it, with the end of the run as its last frame. */
  close(simulation: Simulation): object {
    this.#frames.push(this.#frame(simulation, simulation.nowUs));
    const context = { originUs: 0, place: (instance: number) => this.#options.instances[instance] ?? '' };
    return {
      object: 'kvasir.dashboard.recording',
      frames: this.#frames,
      requests: this.#requests.map((trace) => requestRow(trace, context)),
    };
  }

  #frame(simulation: Simulation, nowUs: number): DashboardFrame {
    const { model, instances, boundsOf } = this.#options;
    const { cluster, lending } = simulation;
    const frame = dashboardFrame({
      ...{ models: [model], ready: true, kvTokenBytes: undefined },
      ...{ atMs: nowUs / 1000, nowUs, originUs: 0, boundsOf },
      snapshots: simulation
        .snapshots()
        .map((snapshot, i): InstanceSnapshot => ({ ...snapshot, name: instances[i] ?? '' })),
      roles: instances.map((name) => name.split(' ')[0] as InstanceRole),
      ...{ traces: this.#ended.slice(-latenciesMax), changed: [] },
      refusals: [...this.#refusals.values()],
      prefixes: cluster.conductor.sharedPrefixes(prefixesMax),
    });
    return {
      ...frame,
      links: cluster.network.links.map(({ from, to, bytes }) => [from, to, bytes, 0] as const),
      debts: (lending?.debts ?? []).map(({ debtor, creditor, blocks }) => [debtor, creditor, blocks] as const),
    };
  }
}

function traceOf(
  id: RequestId,
  nowUs: number,
  { trace, startedUs, firstTokenUs, lastTokenUs, outputs, cachedTokens }: LengthRequest,
  event: EndEvent,
  found: Pick<RequestTrace, 'placements' | 'blocks' | 'steps'>,
): RequestTrace {
  const isRefused = event.kind === 'failed' && event.cause !== undefined;
  return {
    ...{ id, batch: trace.batch ?? false, priority: trace.priority ?? 0, trace: undefined },
    ...{ sloClass: trace.sloClass, tenant: trace.tenant },
    state: event.kind === 'finished' ? 'finished' : isRefused ? 'refused' : 'failed',
    ...{ promptTokens: trace.inputTokens, maxTokens: trace.outputTokens, outputTokens: outputs },
    ...{
      cachedTokens: startedUs === undefined ? undefined : cachedTokens,
      ...found,
      stepsOmitted: 0,
    },
    ...{ submittedUs: trace.arrivalUs, startedUs, firstTokenUs, prefilledUs: undefined },
    lastTokenUs: firstTokenUs === undefined ? undefined : lastTokenUs,
    endedUs: event.kind === 'finished' ? lastTokenUs : nowUs,
    end:
      event.kind === 'finished'
        ? { kind: 'finished', reason: event.reason }
        : { kind: 'failed', code: event.code, message: event.message, cause: event.cause },
  };
}
