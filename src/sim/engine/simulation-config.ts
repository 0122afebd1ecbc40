// What a simulation is of: instances, the network between them, and what goes wrong.

import type { LengthInstance, LengthInstanceConfig } from '../../core/instance/length-instance.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { PlacementAccount } from '../../core/protocol/request-trace.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import type { Conductor } from '../../core/router/conductor.ts';
import type { PipelineSettings, PlacementSettings } from '../../core/router/placement/placer.ts';
import type { PrefillWatch } from '../../core/router/placement/prefill-watch.ts';
import type { TokenTransfers } from '../../core/router/token-transfers.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { FaultLayer } from '../faults/fault-layer.ts';
import type { FaultPlan } from '../faults/faults.ts';
import type { ClusterLendingConfig } from '../lending/lending-host.ts';
import type { Network, Nic } from '../network/network.ts';
import type { RetrySettings } from '../workload/retries.ts';
import type { StepWatch } from './executor.ts';
import type { ThreadTimes } from './message-delivery.ts';
import type { SsdRates } from './ssd.ts';

export interface InstanceSpec {
  readonly role: InstanceRole;
  readonly machine: Omit<LengthInstanceConfig, 'queueMax'>;
  readonly nic: Nic;
  /** It is not there until a request outgrows its instance, and then takes so long to start; undefined: it is there. */
  readonly startUs?: number | undefined;
  /** Of host memory, blocks for sequences, its own and others', and what a token takes from there to its devices; undefined: none. */
  readonly hostMemory?: { readonly blocks: number; readonly tokenUs: number } | undefined;
  /** What its SSD reads and writes, where blocks are kept there. */
  readonly ssd?: SsdRates | undefined;
}

export interface Inspection {
  readonly after: () => void;
  readonly ended: (request: LengthRequest, event: GenerationEvent) => void;
}

/** What a conductor over engines learns. */
export interface Learned {
  /** How long prefills take. */
  readonly prefills: PrefillWatch;
  /** How long prefixes take from one instance to another. */
  readonly transfers: TokenTransfers;
}

export interface SimulationConfig {
  readonly instances: readonly InstanceSpec[];
  /** Between two instances, where that is less than their NICs. */
  readonly linkBytesPerSecond: number | undefined;
  readonly blockTokens: number;
  /** Requests accepted at once, over all instances. */
  readonly queueMax: number;
  readonly placement: PlacementSettings;
  readonly admission: AdmissionSettings;
  /** Undefined: who is refused does not come again. */
  readonly retries?: RetrySettings | undefined;
  /** Groups of instances that prefill compute long prompts together; undefined: none does. */
  readonly pipeline?: PipelineSettings | undefined;
  /** Instances lend memory to one another: those whose machine says how. */
  readonly lending?: ClusterLendingConfig | undefined;
  /** The conductor learns as one over engines does; undefined: cost models tell it. */
  readonly learned?: Learned | undefined;
  /** Instances run as threads with engines do; undefined: all is heard at once. Not with faults, batch jobs or `checking`, whose rules know of no late news without faults. */
  readonly threads?: ThreadTimes | undefined;
  /** Hears where requests go, and why. */
  readonly placed?: ((id: RequestId, account: PlacementAccount) => void) | undefined;
  /** Every machine checks itself after every event, and so does what must hold between them. */
  readonly checking: boolean;
  /** Undefined: nothing goes wrong. */
  readonly faults?: FaultPlan | undefined;
  /** Looks at all after every event, and at what clients hear last. */
  readonly inspect?: Inspection | undefined;
  /** Hears of every step. */
  readonly watch?: StepWatch | undefined;
}

/** All that there is, for those who check it. */
export interface Inside {
  readonly conductor: Conductor<LengthRequest>;
  readonly instances: readonly LengthInstance[];
  readonly faults: FaultLayer | undefined;
  readonly network: Network;
  /** Of a prompt on its way: the keys and values of so many leading tokens have left. */
  readonly leftTo: (from: InstanceIndex, to: InstanceIndex, id: RequestId) => number;
  /** Those whose clients wait, by the clients' names for them. */
  readonly requests: Iterable<readonly [RequestId, LengthRequest]>;
}
