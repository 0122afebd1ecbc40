// The configuration of a conductor, and what it reads of the requests that it routes.

import type { RequestId } from '../protocol/ids.ts';
import type { InstanceRole } from '../protocol/instance-report.ts';
import type { MessageCounts } from '../protocol/message-counts.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { RequestSize } from '../protocol/request-size.ts';
import type { AdmissionConfig } from './admission/admission-controller.ts';
import type { PlacerConfig } from './placement/placer.ts';
import type { RoleSwitchLimits } from './roles/role-switch.ts';

/** What a client has received of its request, from which a later attempt resumes. */
export interface Progress<Request> {
  /** Takes an event of the current attempt; false: the client has received it already. */
  receive(event: GenerationEvent): boolean;
  /** An instance reports that the client has received `outputs` output tokens in all. */
  advance(outputs: number): void;
  /** The reason for which the request has finished; undefined: its last token has not been received. */
  readonly ended: 'stop' | 'length' | undefined;
  /** The request of a new attempt with this id: its instance continues after the received tokens. */
  resume(id: RequestId): Request;
}

/** What the conductor reads of a request, which has token ids when serving and lengths in a simulation. */
export interface RequestModel<Request> {
  size(request: Request): RequestSize;
  isBatchJob(request: Request): boolean;
  /** Undefined: the request cannot be resumed, and has one attempt. */
  progressOf(request: Request): Progress<Request> | undefined;
}

/** Timeouts by which failures are detected when nothing else reports them. */
export interface FailureDetection {
  /** An instance without a heartbeat for this time is failed; an attempt that no heartbeat lists for this time is lost. */
  readonly reportTimeoutUs: number;
  /** From submit to the end of the request. */
  readonly requestTimeoutUs: number;
}

export interface RetryConfig {
  /** Maximum number of attempts of a request, the first one included. */
  readonly attemptsMax: number;
  /** Undefined: every failed instance is reported as `instanceFailed`, and a request that finds no instance fails at once. */
  readonly detection?: FailureDetection | undefined;
  /** Time limit of a request where instances send no heartbeats; undefined: none. */
  readonly requestTimeoutUs?: number | undefined;
}

export interface BatchJobsConfig {
  /** Share of an instance's KV memory that batch jobs may reserve. */
  readonly memoryShare: number;
}

export interface ConductorInstance {
  /** KV tokens that fit into memory at once. */
  readonly capacityTokens: number;
  /** Mixed unless given. */
  readonly role?: InstanceRole;
  /** Down until it joins or reports. */
  readonly absent?: boolean;
  /** Simulator only: started when a request outgrows its instance, to continue here (`takeStandbyEffects`). */
  readonly standby?: boolean;
}

export interface ConductorConfig<Request> {
  readonly instances: readonly ConductorInstance[];
  /** Bound on the requests that are accepted and not ended, over all instances. */
  readonly queueMax: number;
  readonly requests: RequestModel<Request>;
  /** Undefined: the instance with the fewest requests is chosen. */
  readonly placement?: PlacerConfig<Request>;
  /** Undefined: every request that fits is accepted. */
  readonly admission?: AdmissionConfig<Request> | undefined;
  /** Undefined: requests fail with their instance. */
  readonly retries?: RetryConfig | undefined;
  /** Instances change between prefill and decode with the load; undefined: only on `switchRole`. */
  readonly roleSwitch?: RoleSwitchLimits | undefined;
  /** Counts lost, late and duplicate messages. */
  readonly messageCounts?: MessageCounts | undefined;
  /** Undefined: no request is a batch job. */
  readonly batchJobs?: BatchJobsConfig | undefined;
  /** Emits `placed` and `found`, which explain each routing decision. */
  readonly recordsPlacements?: boolean;
}
