// Plans routes: the instances that a request would go to, and whether admission accepts it there. Planning reserves nothing.

import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import { contextTooLong, type Refusal } from '../protocol/refusals.ts';
import { kvTokens, promptOf, type RequestSize } from '../protocol/request-size.ts';
import type { PlacementCandidate, PlacementTrace } from '../protocol/request-trace.ts';
import type { AdmissionController, AdmissionVerdict } from './admission/admission-controller.ts';
import { assignedInstances, type EarlierAttempts, type InstanceFilter, type Route } from './attempts.ts';
import type { BatchJobs } from './batch-jobs.ts';
import type { ConductorContext } from './conductor-context.ts';
import { nothingFetched, type PlacementDecision } from './placement/placement.ts';
import type { Placer } from './placement/placer.ts';

export interface RoutingDecision {
  readonly size: RequestSize;
  /** Undefined when no instance is left, and for batch jobs. */
  readonly placement: PlacementDecision | undefined;
  /** Undefined when no instance is left, and for a batch job without memory. */
  readonly route: Route | undefined;
  readonly verdict: AdmissionVerdict | undefined;
  /** Predicted prefill time on each member of a pipeline group; undefined: no group computes the prompt. */
  readonly groupWorkUs: number | undefined;
  /** Tokens of the prompt to compute on the instance that decodes; 0: the prompt is computed elsewhere. */
  readonly inlineTokens: number;
  /** A batch job: it may be held until an instance has memory. */
  readonly job: boolean;
}

/** A prompt that is computed on the instance that decodes it. */
interface InlinePlacement extends PlacementDecision {
  /** Tokens of the prompt to compute. */
  readonly tokens: number;
}

type GroupPlacement = NonNullable<ReturnType<Placer<unknown>['group']>>;

const firstAttempt: EarlierAttempts = { kernels: undefined, refusals: undefined };

export class RoutePlanner<Request extends { readonly id: RequestId }> {
  readonly #context: ConductorContext<Request>;
  readonly #placer: Placer<Request>;
  readonly #admission: AdmissionController<Request>;
  readonly #jobs: BatchJobs<Request>;

  constructor(
    context: ConductorContext<Request>,
    parts: {
      readonly placer: Placer<Request>;
      readonly admission: AdmissionController<Request>;
      readonly jobs: BatchJobs<Request>;
    },
  ) {
    this.#context = context;
    this.#placer = parts.placer;
    this.#admission = parts.admission;
    this.#jobs = parts.jobs;
  }

  /**
   * Avoids instances whose running step is overdue, as long as others can serve the request.
   * @param earlier the request continues with the same kernels alone, and not on instances that have refused it
   */
  plan(request: Request, { kernels, refusals }: EarlierAttempts = firstAttempt): RoutingDecision {
    const { overdue } = this.#context.instances;
    if (overdue.size === 0) return this.#plan(request, kernels, refusals);
    const avoiding = this.#plan(request, kernels, { has: (i) => overdue.has(i) || refusals?.has(i) === true });
    return avoiding.route === undefined ? this.#plan(request, kernels, refusals) : avoiding;
  }

  #plan(request: Request, kernels: EarlierAttempts['kernels'], except: InstanceFilter | undefined): RoutingDecision {
    const { nowUs, config, instances } = this.#context;
    const size = config.requests.size(request);
    if (this.#jobs.isJob(request)) return this.planJob(size, this.#jobs.anyHeld, except);
    const holdsAll = this.#without(except, this.#mayDecode(size, kernels?.decode));
    const mayCompute = this.#without(except, this.#withKernels(this.#mayCompute(size, holdsAll), kernels?.prefill));
    const elsewhere = this.#anyMayServe(size, kernels, except)
      ? this.#placer.choose(nowUs, request, size.promptTokens, mayCompute)
      : undefined;
    const inline = elsewhere && this.#planInline(request, size, holdsAll);
    const ungrouped =
      inline === undefined
        ? this.#routeOf(elsewhere, size, holdsAll)
        : { instance: inline.instance, decodeAt: undefined };
    const grouped =
      elsewhere &&
      ungrouped?.decodeAt !== undefined &&
      instances.allReach &&
      instances.overdue.size === 0 &&
      this.#placer.group(request, size.promptTokens, elsewhere, ungrouped.decodeAt);
    const { placement, route } = grouped
      ? groupRoute(grouped, ungrouped)
      : { placement: inline ?? elsewhere, route: ungrouped };
    const verdict =
      placement &&
      this.#admission.judge(nowUs, request, {
        promptTokens: size.promptTokens,
        waitUs: placement.waitUs,
        prefillUs: placement.prefillUs * this.#placer.stretch(request, placement.instance),
        from: placement.instance,
        member: route && this.decoderOf(route),
        outputTokensMax: size.outputTokensMax,
        later: route && instances.roleOf(route.instance) === 'mixed' ? this.#placer.laterPrefills() : undefined,
      });
    const groupWorkUs = grouped ? grouped.choice.workUs : undefined;
    return { size, placement, route, verdict, groupWorkUs, inlineTokens: inline?.tokens ?? 0, job: false };
  }

  /** @param queued other jobs wait before this one */
  planJob(size: RequestSize, queued: boolean, except?: InstanceFilter): RoutingDecision {
    const waitUs = this.#placer.waitsUs(this.#context.nowUs);
    const instance = queued ? undefined : this.#jobs.choose(size, waitUs, except);
    const route = instance === undefined ? undefined : { instance, decodeAt: undefined };
    return {
      size,
      placement: undefined,
      route,
      verdict: undefined,
      groupWorkUs: undefined,
      inlineTokens: 0,
      job: true,
    };
  }

  /**
   * False when instances are left, but all with other kernels or exceptions, or no prefill instance reaches one that
   * decodes.
   */
  #anyMayServe(
    { outputTokensMax }: RequestSize,
    kernels: EarlierAttempts['kernels'],
    except: InstanceFilter | undefined,
  ): boolean {
    const { instances } = this.#context;
    if (kernels === undefined && except === undefined && instances.allReach) return true;
    const has = (i: InstanceIndex, required: string | undefined): boolean =>
      (required === undefined || instances.at(i).kernels === required) && except?.has(i) !== true;
    const { decoding } = instances;
    return instances.computing.some((i) => {
      if (!has(i, kernels?.prefill)) return false;
      if (instances.roleOf(i) === 'mixed') return has(i, kernels?.decode);
      return outputTokensMax <= 1 || decoding.some((to) => has(to, kernels?.decode) && instances.reaches(i, to));
    });
  }

  /** (instances): 1 where the output may be computed; undefined: on every instance. */
  #mayDecode(size: RequestSize, kernels: string | undefined): Uint8Array | undefined {
    return this.#withKernels(this.#holdsAll(size), kernels);
  }

  /** Those of `eligible` with these kernels; undefined: any. */
  #withKernels(eligible: Uint8Array | undefined, kernels: string | undefined): Uint8Array | undefined {
    if (kernels === undefined) return eligible;
    const { instances } = this.#context;
    return Uint8Array.from({ length: instances.count }, (_, i) =>
      Number(eligible?.[i] !== 0 && instances.at(i).kernels === kernels),
    );
  }

  /** Those of `eligible` that are no exception. */
  #without(except: InstanceFilter | undefined, eligible: Uint8Array | undefined): Uint8Array | undefined {
    if (except === undefined) return eligible;
    return Uint8Array.from({ length: this.#context.instances.count }, (_, i) =>
      Number(eligible?.[i] !== 0 && !except.has(i)),
    );
  }

  /** Those of `eligible` to which the instance can send a prompt. */
  #reachedFrom(instance: InstanceIndex, eligible: Uint8Array | undefined): Uint8Array | undefined {
    const { instances } = this.#context;
    if (instances.at(instance).unreachable.size === 0) return eligible;
    return Uint8Array.from({ length: instances.count }, (_, i) =>
      Number(eligible?.[i] !== 0 && instances.reaches(instance, i)),
    );
  }

  /** (instances): 1 where memory holds the prompt and its output; undefined: every instance holds them. */
  #holdsAll(size: RequestSize): Uint8Array | undefined {
    const { instances } = this.#context;
    const tokens = kvTokens(size);
    if (instances.allHold(tokens)) return undefined;
    return Uint8Array.from({ length: instances.count }, (_, i) => Number(tokens <= instances.at(i).capacityTokens));
  }

  /**
   * (instances): 1 where the prompt may be computed; undefined: on every instance. The output has to fit with the prompt, unless an
   * instance that holds both decodes it. Without decode instances, mixed instances do both.
   */
  #mayCompute(size: RequestSize, holdsAll: Uint8Array | undefined): Uint8Array | undefined {
    const { instances } = this.#context;
    const needsDecode = size.outputTokensMax > 1;
    const { decoding } = instances;
    const isDecoded = (i: InstanceIndex): boolean =>
      !needsDecode || decoding.some((to) => holdsAll?.[to] !== 0 && instances.reaches(i, to));
    if (holdsAll === undefined) {
      if (needsDecode && decoding.length > 0 && !instances.allReach)
        return Uint8Array.from({ length: instances.count }, (_, i) =>
          Number(instances.roleOf(i) !== 'prefill' || isDecoded(i)),
        );
      if (!needsDecode || decoding.length > 0) return undefined;
      return instances.notPrefill;
    }
    return holdsAll.map((holds, i) => {
      const { role, capacityTokens } = instances.at(i);
      return role === 'prefill' ? Number(isDecoded(i) && size.promptTokens <= capacityTokens) : holds;
    });
  }

  /** Undefined: the prompt is too long to be computed on the instance that decodes it. */
  #planInline(
    request: Request,
    { promptTokens, outputTokensMax }: RequestSize,
    holdsAll: Uint8Array | undefined,
  ): InlinePlacement | undefined {
    if (outputTokensMax <= 1) return undefined;
    const { nowUs } = this.#context;
    const choice = this.#admission.chooseInline(nowUs, request, promptTokens, this.#placer, holdsAll);
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

  /** A request with one output token needs no decode instance: the prefill computes that token. */
  #routeOf(
    placement: PlacementDecision | undefined,
    { promptTokens, outputTokensMax }: RequestSize,
    holdsAll: Uint8Array | undefined,
  ): Route | undefined {
    if (placement === undefined) return undefined;
    const { nowUs, instances } = this.#context;
    const { instance, queueUs, transferUs, prefillUs } = placement;
    if (instances.roleOf(instance) === 'mixed' || outputTokensMax <= 1) return { instance, decodeAt: undefined };
    const prefilledUs = nowUs + queueUs + transferUs + prefillUs;
    const reached = this.#reachedFrom(instance, holdsAll);
    // When no instance holds the request, the refusal names the largest one.
    const decodeAt =
      this.#admission.chooseDecoder(nowUs, promptTokens, prefilledUs, reached) ??
      instances.largestOf(instances.decoding.filter((to) => instances.reaches(instance, to)));
    return decodeAt === undefined ? undefined : { instance, decodeAt };
  }

  /** The refusal of a request that exceeds the memory of its instances; `no-instance`: none is left. */
  capacityRefusal({ route, job, size }: RoutingDecision): Refusal | 'no-instance' | undefined {
    const { instances } = this.#context;
    const capacityTokens = job
      ? this.#jobs.largestTokens
      : route && instances.at(route.decodeAt ?? route.instance).capacityTokens;
    if (capacityTokens === undefined) return 'no-instance';
    const refused = contextTooLong(size, capacityTokens);
    if (refused !== undefined || route?.decodeAt === undefined) return refused;
    const computing = assignedInstances(route).filter((each) => each !== route.decodeAt);
    return contextTooLong(promptOf(size), Math.min(...computing.map((each) => instances.at(each).capacityTokens)));
  }

  /** The instance that decodes; undefined: the request has one output token, which the prefill computes. */
  decoderOf({ instance, decodeAt }: Route): InstanceIndex | undefined {
    return decodeAt ?? (this.#context.instances.roleOf(instance) === 'prefill' ? undefined : instance);
  }
}

function groupRoute({ choice, prefix }: GroupPlacement, ungrouped: Route) {
  const { members, layers, chunkTokens, queueUs, waitUs, prefillUs } = choice;
  const [instance] = members;
  const { decodeAt = instance } = ungrouped;
  const placement: PlacementDecision = { ...nothingFetched, instance, queueUs, waitUs, prefillUs };
  return { placement, route: { instance, decodeAt, group: { members, layers, chunkTokens, prefix, decodeAt } } };
}

/** The record of a decision in the trace of its request. */
export function placementTrace(
  atUs: number,
  { placement, route, verdict, inlineTokens }: RoutingDecision,
  considered: readonly PlacementCandidate[],
  blockTokens: number,
): PlacementTrace {
  return {
    atUs,
    candidates: considered,
    instance: route?.instance,
    decodeAt: route?.decodeAt,
    group: route?.group?.members,
    fetchedFrom: placement?.from,
    fetchedTokens: (placement?.fetchedBlocks ?? 0) * blockTokens,
    inline: inlineTokens > 0,
    waitUs: placement?.waitUs,
    prefillUs: placement?.prefillUs,
    predicted: verdict?.predicted,
  };
}
