// The context that the parts of an instance share: that of its components, and the hooks of the components.

import type { ComponentHooks, Identified, InstanceContext } from './component.ts';
import type { RunningRequest } from './executor/executor.ts';
import type { HostTraffic } from './host-traffic.ts';
import type { StepInFlight } from './step-in-flight.ts';

export interface InstanceInternals<Request extends Identified, S extends RunningRequest>
  extends InstanceContext<Request, S> {
  /** The components that override each hook, in the order of registration. */
  readonly hooks: ComponentHooks<Request, S>;
  readonly steps: StepInFlight<S>;
  readonly hostTraffic: HostTraffic;
  /** Like `capacityTokens`, without instances that continue requests. */
  readonly ownCapacityTokens: number;
}
