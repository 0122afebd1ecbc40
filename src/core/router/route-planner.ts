// Where a request would go, and what it would meet there: looking changes nothing.

import type { InstanceIndex } from '../protocol/ids.ts';
import type { Refusal } from '../protocol/refusals.ts';
import { contextTooLong } from '../protocol/refusals.ts';
import { kvTokens, promptOf, type RequestSize } from '../protocol/request-size.ts';
import type { AdmissionController, Verdict } from './admission/admission-controller.ts';
import { legsOf, type Route } from './attempts.ts';
import type { BatchJobs } from './batch-jobs.ts';
import { nothingFetched, type PlacementDecision } from './placement/placement.ts';
import type { Placer } from './placement/placer.ts';
import type { Roles } from './roles/roles.ts';

/** Where a request would go, and what it would meet there; undefined where no instance is left. */
export interface RoutingDecision {
  readonly size: RequestSize;
  readonly decision: PlacementDecision | undefined;
  readonly route: Route | undefined;
  readonly verdict: Verdict | undefined;
  /** Of every member, where a group computes the prompt. */
  readonly workUs: number | undefined;
  /** Of the prompt, to be computed where it decodes. */
  readonly inlineTokens: number;
  /** A batch job: where it has no place it may be held. */
  readonly job: boolean;
}

/** A prompt that is computed where it decodes: `tokens` of it. */
interface Inline extends PlacementDecision {
  readonly tokens: number;
}

type Grouped = NonNullable<ReturnType<Placer<unknown>['group']>>;

/** The way of a prompt that a group computes. */
function together({ choice, prefix }: Grouped, alone: Route) {
  const { members, layers, chunkTokens, queueUs, waitUs, prefillUs } = choice;
  const [instance] = members;
  const { decodeAt = instance } = alone;
  const decision: PlacementDecision = { ...nothingFetched, instance, queueUs, waitUs, prefillUs };
  return { decision, route: { instance, decodeAt, group: { members, layers, chunkTokens, prefix, decodeAt } } };
}

interface Parts<Request> {
  readonly size: (request: Request) => RequestSize;
  readonly placer: Placer<Request>;
  readonly gate: AdmissionController<Request>;
  readonly roles: Roles;
  readonly jobs: BatchJobs<Request>;
  readonly instances: number;
  readonly capacityTokens: (instance: InstanceIndex) => number;
}

type Holds = (instance: InstanceIndex, tokens: number) => boolean;

export class RoutePlanner<Request> {
  readonly #parts: Parts<Request>;

  constructor(parts: Parts<Request>) {
    this.#parts = parts;
  }

  of(nowUs: number, request: Request): RoutingDecision {
    const { jobs, placer, gate, roles } = this.#parts;
    const size = this.#parts.size(request);
    if (jobs.isJob(request)) return this.ofJob(nowUs, size, jobs.anyHeld);
    const holds = this.#holders(size);
    const decodes = holds && ((i: InstanceIndex) => holds(i, kvTokens(size)));
    const elsewhere = placer.choose(nowUs, request, size.promptTokens, this.#computers(size, holds));
    const inline = elsewhere && this.#inline(nowUs, request, size, decodes);
    const alone =
      inline === undefined
        ? this.#route(nowUs, elsewhere, size, decodes)
        : { instance: inline.instance, decodeAt: undefined };
    const grouped =
      elsewhere && alone?.decodeAt !== undefined && placer.group(request, size.promptTokens, elsewhere, alone.decodeAt);
    const { decision, route } = grouped ? together(grouped, alone) : { decision: inline ?? elsewhere, route: alone };
    const verdict =
      decision &&
      gate.look(nowUs, request, {
        promptTokens: size.promptTokens,
        waitUs: decision.waitUs,
        prefillUs: decision.prefillUs,
        inline: inline !== undefined,
        member: route && decoderOf(route, roles),
      });
    const workUs = grouped ? grouped.choice.workUs : undefined;
    return { size, decision, route, verdict, workUs, inlineTokens: inline?.tokens ?? 0, job: false };
  }

  /** Instances may differ in memory: whether one could hold so many tokens; undefined where all could hold the whole request. */
  #holders(size: RequestSize): Holds | undefined {
    const { capacityTokens, instances } = this.#parts;
    const tokens = kvTokens(size);
    for (let i = 0; i < instances; i++)
      if (tokens > capacityTokens(i)) return (instance, needed) => needed <= capacityTokens(instance);
    return undefined;
  }

  /** The output has to fit beside the prompt, unless one decodes it that could hold both; where nobody decodes what others prefill, mixed ones do both. */
  #computers(size: RequestSize, holds: Holds | undefined): ((instance: InstanceIndex) => boolean) | undefined {
    const { roles } = this.#parts;
    const apart = size.outputTokensMax > 1;
    const alone = apart && roles.decoding.length === 0;
    if (holds === undefined) return alone ? (i) => roles.of(i) !== 'prefill' : undefined;
    const isDecoded = !apart || roles.decoding.some((i) => holds(i, kvTokens(size)));
    return (i) => (roles.of(i) === 'prefill' ? isDecoded && holds(i, size.promptTokens) : holds(i, kvTokens(size)));
  }

  /** @param waits others wait before it */
  ofJob(nowUs: number, size: RequestSize, waits: boolean): RoutingDecision {
    const { jobs, placer } = this.#parts;
    const instance = waits ? undefined : jobs.choose(size, placer.waitsUs(nowUs));
    const route = instance === undefined ? undefined : { instance, decodeAt: undefined };
    return { size, decision: undefined, route, verdict: undefined, workUs: undefined, inlineTokens: 0, job: true };
  }

  /** The prompt is short enough to be computed where it decodes. */
  #inline(
    nowUs: number,
    request: Request,
    { promptTokens, outputTokensMax }: RequestSize,
    holds: ((instance: InstanceIndex) => boolean) | undefined,
  ): Inline | undefined {
    if (outputTokensMax <= 1) return undefined;
    const { gate, placer } = this.#parts;
    const choice = gate.chooseInline(nowUs, request, promptTokens, (i) => placer.cachedTokens(i), holds);
    if (choice === undefined) return undefined;
    return {
      ...nothingFetched,
      instance: choice.member,
      tokens: promptTokens - choice.cachedTokens,
      queueUs: choice.waitUs,
      waitUs: choice.waitUs,
      prefillUs: choice.stepUs,
    };
  }

  /** Why it could never be held where it would go; `nobody`: no instance is left. */
  unfit({ route, job, size }: RoutingDecision): Refusal | 'nobody' | undefined {
    const { jobs, capacityTokens } = this.#parts;
    const most = job ? jobs.largestTokens : route && capacityTokens(route.decodeAt ?? route.instance);
    if (most === undefined) return 'nobody';
    const refused = contextTooLong(size, most);
    if (refused !== undefined || route?.decodeAt === undefined) return refused;
    const computes = legsOf(route).filter((leg) => leg !== route.decodeAt);
    return contextTooLong(promptOf(size), Math.min(...computes.map((leg) => capacityTokens(leg))));
  }

  /** One token of output comes with the prompt: nobody has to decode. */
  #route(
    nowUs: number,
    decision: PlacementDecision | undefined,
    { promptTokens, outputTokensMax }: RequestSize,
    holds: ((instance: InstanceIndex) => boolean) | undefined,
  ): Route | undefined {
    if (decision === undefined) return undefined;
    const { roles, gate } = this.#parts;
    const { instance, queueUs, transferUs, prefillUs } = decision;
    if (roles.of(instance) === 'mixed' || outputTokensMax <= 1) return { instance, decodeAt: undefined };
    const atUs = nowUs + queueUs + transferUs + prefillUs;
    const decodeAt = gate.choose(nowUs, promptTokens, atUs, holds) ?? this.#largest(roles.decoding);
    return decodeAt === undefined ? undefined : { instance, decodeAt };
  }

  /** Where nobody could hold a request it says what fits. */
  #largest(instances: readonly InstanceIndex[]): InstanceIndex | undefined {
    const { capacityTokens } = this.#parts;
    let largest: InstanceIndex | undefined;
    for (const i of instances) if (largest === undefined || capacityTokens(i) > capacityTokens(largest)) largest = i;
    return largest;
  }
}

/** Who decodes a request that goes this way; undefined: nobody has to. */
export function decoderOf({ instance, decodeAt }: Route, roles: Roles): InstanceIndex | undefined {
  return decodeAt ?? (roles.of(instance) === 'prefill' ? undefined : instance);
}
