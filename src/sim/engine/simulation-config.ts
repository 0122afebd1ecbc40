// The configuration of a simulated cluster, and the interface through which its parts use the cluster.

import type { RemoteAttentionKind } from '../../core/cost/remote-way.ts';
import type { LengthEvent, LengthInstance, LengthInstanceConfig } from '../../core/instance/length-instance.ts';
import type { LendingTimes } from '../../core/lending/times.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationEvent, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { PlacementTrace, PromptBlockCounts } from '../../core/protocol/request-trace.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import type { LearnedTransfers } from '../../core/router/placement/learned-transfers.ts';
import type { PipelineSettings, PlacementSettings } from '../../core/router/placement/placer.ts';
import type { PrefillObserver } from '../../core/router/placement/prefill-observer.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { FaultPlan } from '../faults/fault-plan.ts';
import type { Nic, Racks, TransferListener } from '../network/network.ts';
import type { ClientPauses } from '../workload/client-loop.ts';
import type { RetrySettings } from '../workload/retries.ts';
import type { EventQueue } from './event-queue.ts';
import type { StepListener } from './executor.ts';
import type { ExternalEngines } from './external-engines.ts';
import type { LearnedCost } from './learned-cost.ts';

export interface SsdRates {
  readonly readBytesPerSecond: number;
  readonly writeBytesPerSecond: number;
}

export interface InstanceSpec {
  readonly role: InstanceRole;
  readonly machine: Omit<LengthInstanceConfig, 'queueMax'>;
  readonly nic: Nic;
  /** Time to start a standby instance, which is absent until a request outgrows its instance. Undefined: present from the start. */
  readonly startUs?: number | undefined;
  /** Host memory for blocks of sequences, its own and borrowed, and the time to move a token between it and the devices. Undefined: none. */
  readonly hostMemory?: { readonly blocks: number; readonly tokenUs: number } | undefined;
  /** Undefined: no blocks are kept on SSD. */
  readonly ssd?: SsdRates | undefined;
}

export interface Inspection {
  /** Called after every event. */
  readonly after: () => void;
  /** Called with the last event of each request. */
  readonly ended: (request: LengthRequest, event: GenerationEvent) => void;
}

export type EndEvent = Extract<GenerationEvent, { kind: 'finished' | 'failed' }>;

/** Observes the requests of a run. A request that returns after a refusal has another id. */
export interface RequestListener {
  /** A routing decision, with its reasons. */
  placed(id: RequestId, placement: PlacementTrace): void;
  /** The blocks of the prompt at its instance. */
  found(id: RequestId, blocks: PromptBlockCounts): void;
  /** A token reaches the client, the one at this place of the output; of some instances only the first one does. */
  received?(id: RequestId, nowUs: number, place: number): void;
  /** @param returns the client sends the request again later */
  ended(id: RequestId, nowUs: number, request: LengthRequest, event: EndEvent, returns: boolean): void;
}

/** Predictors that the conductor of a live cluster learns. */
export interface LearnedPredictors {
  /** Prefill times. */
  readonly prefills: PrefillObserver;
  /** Transfer times of prefixes between instances. */
  readonly transfers: LearnedTransfers;
  /** (instances): step times, for admission; undefined: the cost models of the instances. */
  readonly steps?: readonly LearnedCost[] | undefined;
}

/** The messages that an instance sends in one turn of its loop. */
export interface SentTurn {
  /** The turn follows the end of a step. */
  readonly stepEnded: boolean;
  /** One of the requests that have started; undefined: none has. */
  readonly started: RequestId | undefined;
  /** One of the requests whose first tokens it has; undefined: it has none. */
  readonly firstTokens?: RequestId | undefined;
}

/** What a heartbeat of an instance states. */
export type LearnedState = Parameters<LearnedTransfers['observe']>[1] &
  Pick<InstanceSnapshot, 'stepCost' | 'servedAttentionPermille'>;

/** A heartbeat of a recorded instance. */
export interface RecordedHeartbeat {
  readonly receivedUs: number;
  readonly state: LearnedState;
}

/** Message times where instances and the conductor run as threads. */
export interface ThreadTimes {
  /** Time until an instance receives what the conductor sends at `nowUs`; messages to it keep their order. */
  readonly toInstanceUs: (nowUs: number, instance: InstanceIndex, request: RequestId | undefined) => number;
  /** Time until an instance has a prompt whose last bytes leave the sender at `nowUs`; undefined: the usual latency. */
  readonly handOffUs?: (nowUs: number, to: InstanceIndex, request: RequestId) => number;
  /** Time until an instance has a prefix whose last bytes leave the sender at `nowUs`; undefined: the usual latency. */
  readonly prefixUs?: (nowUs: number, to: InstanceIndex, request: RequestId) => number | undefined;
  /** Time until an instance receives that its prefix begins to arrive, sent at `nowUs`; undefined: the usual latency. */
  readonly prefixBeginUs?: (nowUs: number, to: InstanceIndex, request: RequestId) => number | undefined;
  /** When the conductor next receives what an instance has learned, in a heartbeat; undefined: with every message. */
  readonly nextReportUs?: (nowUs: number, instance: InstanceIndex) => number;
  /** (instances): heartbeats by time, which the conductor observes instead of those of the simulated instances until the last one. */
  readonly heartbeats?: readonly (readonly RecordedHeartbeat[])[] | undefined;
  /** When the conductor receives what an instance sends at `nowUs`. */
  readonly receivedUs: (nowUs: number, instance: InstanceIndex, sent: SentTurn) => number;
}

export interface ClusterLendingConfig {
  readonly times: LendingTimes;
  /** Cycles of debts are settled (DGFM). */
  readonly settles: boolean;
  readonly settleBlocksMin: number;
  /** Blocks of one attention range. */
  readonly rangeBlocks: number;
  readonly seed: number;
  readonly remoteAttentionPermilleMax: number;
  /** Of one row over all layers: its query and its partial result. */
  readonly queryRowBytes: number;
  readonly layers: number;
  /** Undefined: `dist`. */
  readonly remoteAttention?: RemoteAttentionKind | undefined;
  /** (instances): time to move a token's keys and values between devices and host memory; undefined where no host memory is lent. */
  readonly hostTokenUs?: readonly number[] | undefined;
}

export const gatewayBalancings = ['round-robin', 'session'] as const;

export interface GatewaySettings {
  readonly count: number;
  /** How requests are spread: one gateway after another, or all requests of a session to the same one. */
  readonly balancing: (typeof gatewayBalancings)[number];
  /** Least time between two reports of an instance about the load of the other gateways. */
  readonly loadReportUs: number;
}

export interface SimulationConfig {
  readonly instances: readonly InstanceSpec[];
  /** Between two instances, where that is less than their NICs. */
  readonly linkBytesPerSecond: number | undefined;
  /** Undefined: all instances are neighbours. */
  readonly racks?: Racks | undefined;
  readonly blockTokens: number;
  /** Maximum number of accepted requests, over all instances. */
  readonly queueMax: number;
  /** Undefined: one gateway, which places every request. More than one: without faults, role switches, standby instances or `checking`. */
  readonly gateways?: GatewaySettings | undefined;
  readonly placement: PlacementSettings;
  readonly admission: AdmissionSettings;
  /** Clients of a closed loop, each with one request at a time; undefined: requests arrive at the times of the workload. */
  readonly clients?: number | undefined;
  /** Pauses of a client between an answer and its next request; undefined: none. */
  readonly clientPauses?: ClientPauses | undefined;
  /** Undefined: refused requests do not return. */
  readonly retries?: RetrySettings | undefined;
  /** Groups of prefill instances compute long prompts together; undefined: no groups. */
  readonly pipeline?: PipelineSettings | undefined;
  /** Lending among the instances that have a borrowing configuration. */
  readonly lending?: ClusterLendingConfig | undefined;
  /** The conductor learns its predictions as a live one does; undefined: cost models predict. */
  readonly learned?: LearnedPredictors | undefined;
  /** Instances show themselves as external engines do. Not with faults. */
  readonly external?: ExternalEngines | undefined;
  /** Instances run as threads with engines do; undefined: messages arrive at once. Not with faults, batch jobs or `checking`: their rules expect prompt delivery. */
  readonly threads?: ThreadTimes | undefined;
  readonly requestListener?: RequestListener | undefined;
  /** Called with every transfer between instances when it ends. */
  readonly transferListener?: TransferListener | undefined;
  /** After every event, every state machine checks itself, and the invariants of the cluster are checked. */
  readonly checking: boolean;
  /** Undefined: no faults. */
  readonly faults?: FaultPlan | undefined;
  readonly inspect?: Inspection | undefined;
  /** Called with every step. */
  readonly stepListener?: StepListener | undefined;
}

/** The instances as the conductor predicts them. */
export function predictedInstances({ instances, learned, external }: SimulationConfig): readonly InstanceSpec[] {
  const steps = learned?.steps ?? external?.steps;
  if (steps === undefined) return instances;
  return instances.map((spec, i) => ({ ...spec, machine: { ...spec.machine, cost: steps[i] } }));
}

/** What every part of the cluster uses of it. The host interface of a part adds what that part alone uses. */
export interface ClusterHost {
  readonly config: SimulationConfig;
  readonly queue: EventQueue;
  readonly instances: readonly LengthInstance[];
  /** The instance handles the event now, if it is up. */
  deliverToInstance(index: InstanceIndex, event: LengthEvent): void;
  deliverToConductor(event: ConductorEvent<LengthRequest>): void;
}
