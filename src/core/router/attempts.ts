// Accepted requests and their attempts: each attempt is one routing of a request to instances, with an id of its own.

import type { PipelineGroup } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { Refusal } from '../protocol/refusals.ts';
import type { AdmittedRequest } from './admission/admission-controller.ts';
import type { Progress } from './conductor-config.ts';
import type { PlacedPrompt } from './placement/placed-prompt.ts';

/** The instances of an attempt. */
export interface Route {
  /** Computes the prompt; of a pipeline group, the first member. */
  readonly instance: InstanceIndex;
  /** Decodes; undefined: `instance` decodes too. */
  readonly decodeAt: InstanceIndex | undefined;
  /** The instances that compute the prompt together, `instance` first. */
  readonly group?: PipelineGroup | undefined;
}

/** The phase of an attempt, as far as its instances have reported. */
type Phase = 'queued' | 'prefill' | 'decode';

/** Instances name the attempt by its own id, so that events of an earlier attempt are not taken for those of this one. */
export interface Attempt<Request = unknown> extends Route {
  readonly id: RequestId;
  /** Undefined for batch jobs, which placement does not count. */
  readonly placed: PlacedPrompt | undefined;
  /** The attempt as the decode pool counts it. */
  readonly admitted: AdmittedRequest<Request> | undefined;
  /** Tokens of the prompt that are still to be computed on the instance that decodes. */
  inlineTokens: number;
  /** Tokens that a batch job reserves. */
  readonly jobTokens: number;
  /** Changes when the request migrates to an instance with more memory. */
  decodeAt: InstanceIndex | undefined;
  phase: Phase;
  /** An instance has reported the start. */
  started: boolean;
  /** The group has not formed: its first member computes the whole prompt. */
  isAlone: boolean;
  /** The decode instance has the whole prompt: the other instances are no longer assigned. */
  handedOff: boolean;
  /** Time of the last report of the attempt; while a group computes, the last time by which all members had reported it. */
  reportedUs: number;
  /** Members that have not reported since `reportedUs`; undefined: none has. */
  unreported?: Set<InstanceIndex> | undefined;
}

/** What is reserved for an attempt when it starts. */
type Reserved<Request> = Pick<Attempt<Request>, 'placed' | 'admitted' | 'inlineTokens' | 'jobTokens'>;

export function newAttempt<Request>(
  nowUs: number,
  id: RequestId,
  { instance, decodeAt, group }: Route,
  { placed, admitted, inlineTokens, jobTokens }: Reserved<Request>,
): Attempt<Request> {
  return {
    id,
    instance,
    decodeAt,
    group,
    placed,
    admitted,
    inlineTokens,
    jobTokens,
    phase: 'queued',
    started: false,
    isAlone: false,
    handedOff: false,
    reportedUs: nowUs,
  };
}

/** The kernels of the instances of an attempt. An attempt with others may compute other tokens. */
export interface RouteKernels {
  readonly prefill: string | undefined;
  readonly decode: string | undefined;
}

/** What earlier attempts of a request demand of the next one. */
export type EarlierAttempts = Pick<TrackedRequest<unknown>, 'kernels' | 'refusals'>;

/** A set of instances. */
export interface InstanceFilter {
  has(instance: InstanceIndex): boolean;
}

/** A request that is accepted and not ended. */
export interface TrackedRequest<Request> {
  readonly id: RequestId;
  /** Undefined: the request has one attempt. */
  readonly progress: Progress<Request> | undefined;
  readonly submittedUs: number;
  /** Attempts so far. */
  attempts: number;
  /** The client has received `started`. */
  started: boolean;
  /** Kernels that have computed tokens which the client has received; undefined: none yet. */
  kernels: RouteKernels | undefined;
  /** Of instances that have refused it for their load, to which no attempt goes, in order; undefined: none has. */
  refusals: Map<InstanceIndex, Refusal> | undefined;
  /** Undefined: the request waits for an instance. */
  attempt: Attempt<Request> | undefined;
}

/** The instances that an attempt is assigned to. */
export function assignedInstances({
  instance,
  decodeAt,
  group,
  handedOff = false,
}: Route & { handedOff?: boolean }): readonly InstanceIndex[] {
  if (decodeAt === undefined) return [instance];
  if (handedOff) return [decodeAt];
  return group === undefined ? [instance, decodeAt] : [...group.members, decodeAt];
}

export function isAssigned(route: Route & { handedOff?: boolean }, instance: InstanceIndex): boolean {
  if (route.decodeAt === undefined) return instance === route.instance;
  return instance === route.decodeAt || (route.handedOff !== true && assignedInstances(route).includes(instance));
}

/** The instance that sends the output to the client. */
export function outputInstance({ instance, decodeAt }: Route): InstanceIndex {
  return decodeAt ?? instance;
}

/**
 * Records that an instance reports the attempt; true when every instance that must report has done so since the last time. A member of a
 * pipeline group would otherwise wait for ever for a member that no longer has the prompt.
 */
export function isReportedByAll(attempt: Attempt, instance: InstanceIndex): boolean {
  const computing = attempt.placed?.computing;
  if (attempt.group === undefined || attempt.phase === 'decode' || computing === undefined) return true;
  // Before the start, and where no group has formed, the other members need not have the request.
  if ((attempt.phase === 'queued' || attempt.isAlone) && instance === attempt.instance) return true;
  attempt.unreported ??= new Set(computing);
  attempt.unreported.delete(instance);
  for (const member of attempt.unreported) if (computing.has(member)) return false;
  attempt.unreported = undefined;
  return true;
}

/** The id of an attempt; the first attempt has the id of the request. */
export function attemptId(id: RequestId, attempts: number): RequestId {
  return attempts === 1 ? id : `${id}~${attempts}`;
}

/** The request of an attempt. */
export function requestIdOf(attempt: RequestId): RequestId {
  return attempt.replace(/~\d+$/, '');
}
