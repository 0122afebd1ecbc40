// The conductor of a simulated cluster.

import type { MessageCounts } from '../../core/protocol/message-counts.ts';
import { admissionConfig, type SloRule } from '../../core/router/admission/length-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import { lengthRequests } from '../../core/router/length-requests.ts';
import { lengthJobs, lengthPlacement } from '../../core/router/placement/length-placement.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { SimulationConfig } from './simulation-config.ts';

/** @param capacityTokens (instances) @param options alone: it knows of no instance yet */
export function createConductor(
  { instances, linkBytesPerSecond, faults, ...config }: SimulationConfig,
  sloOf: SloRule,
  capacityTokens: readonly number[],
  { alone, fates }: { readonly alone: boolean; readonly fates: MessageCounts | undefined },
): Conductor<LengthRequest> {
  const placement = lengthPlacement(config.placement, instances, linkBytesPerSecond, config.pipeline);
  const learned = config.learned && {
    predictors: config.learned.prefills.times,
    transfers: config.learned.transfers.config,
    ssds: config.learned.transfers.ssds,
  };
  return new Conductor({
    instances: instances.map(({ role, startUs }, i) => {
      const standby = startUs !== undefined;
      return { capacityTokens: capacityTokens[i], role, standby, absent: alone || standby };
    }),
    queueMax: config.queueMax,
    requests: lengthRequests,
    placement: { ...placement, ...learned },
    admission: admissionConfig(config.admission, sloOf, instances, capacityTokens, linkBytesPerSecond),
    batchJobs: lengthJobs(instances),
    roleSwitch: config.admission.roleSwitch,
    messageCounts: fates,
    recordsPlacements: config.placed !== undefined,
    retries: faults && {
      attemptsMax: faults.times.triesMax,
      detection: { reportTimeoutUs: faults.times.silentUs, requestTimeoutUs: faults.times.timeoutUs },
    },
  });
}
