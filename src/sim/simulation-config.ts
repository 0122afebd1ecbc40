// What a simulation is of: instances, the network between them, and what goes wrong.
import type { InstanceRole } from '../cluster/conductor.ts';
import type { AdmissionSettings } from '../cluster/length-admission.ts';
import type { LengthInstanceConfig } from '../cluster/length-work.ts';
import type { PipelineSettings, PlacementSettings } from '../cluster/placer.ts';
import type { StepWatch } from './executor.ts';
import type { FaultPlan } from './faults/faults.ts';
import type { Nic } from './network/network.ts';
import type { RetrySettings } from './retries.ts';
import type { SsdRates } from './ssd.ts';

export interface InstanceSpec {
  readonly role: InstanceRole;
  readonly machine: Omit<LengthInstanceConfig, 'queueMax'>;
  readonly nic: Nic;
  /** What its SSD reads and writes, where blocks are kept there. */
  readonly ssd?: SsdRates | undefined;
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
  /** Every machine checks itself after every event. */
  readonly checking: boolean;
  /** Undefined: nothing goes wrong. */
  readonly faults?: FaultPlan | undefined;
  /** Looks at all after every event. */
  readonly inspect?: (() => void) | undefined;
  /** Hears of every step. */
  readonly watch?: StepWatch | undefined;
}
