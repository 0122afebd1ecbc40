// Admission of simulated requests: decode instances and SLOs by the cost models of the instances.

import type { RequestLengths } from '../../../util/request-lengths.ts';
import { ModelPredictor } from '../../cost/model-predictor.ts';
import { ChunkedPrefill } from '../../cost/prefill.ts';
import type { StepCostModel } from '../../cost/roofline.ts';
import type { InstanceRole } from '../../protocol/instance-report.ts';
import type { Slo } from '../../protocol/slo.ts';
import type { BatchLimits } from '../../scheduler/batching/step-budget.ts';
import type { LengthRequest } from '../../scheduler/executor/length-request.ts';
import type { RoleSwitchLimits } from '../roles/role-switch.ts';
import type { AdmissionConfig, HandOffTransfer } from './admission-controller.ts';
import type { AdmissionKind, AdmissionPolicy } from './admission-policy.ts';
import type { ForecastKind } from './decode-forecast.ts';
import type { InlineLimits } from './inline-prefill.ts';
import { type SloClass, sloOf } from './slo.ts';

/** An instance with the models that predict its prefills, decodes and hand-offs. */
interface PredictedInstance {
  readonly role: InstanceRole;
  readonly machine: {
    readonly cost: StepCostModel;
    readonly limits: BatchLimits;
    readonly blockTokens: number;
    readonly handOff?: { readonly layerWise: boolean; readonly receiveTokens: number } | undefined;
  };
  readonly nic: { readonly bytesPerSecond: number };
}

export interface AdmissionSettings {
  readonly kind: AdmissionKind;
  readonly policy?: AdmissionPolicy | undefined;
  /** The class of requests that name none. Undefined: no bounds. */
  readonly slo: SloClass | undefined;
  /** By name. */
  readonly classes?: ReadonlyMap<string, SloClass>;
  /** The decode forecast of the predictive policy; td unless given. */
  readonly forecast?: ForecastKind;
  /** Duration of a decode for the forecast `td`, in microseconds. */
  readonly decodeUs: number;
  /** Refuse before prefill when the predicted probability of a refusal on the decode instance reaches this value; 0.5 unless given. */
  readonly refusalProbabilityMax?: number;
  /** Maximum number of uncached tokens of a prompt for inline prefill; undefined: no inline prefill. */
  readonly inlineTokens?: number | undefined;
  /** Instances change roles with the load; undefined: none does. */
  readonly roleSwitch?: RoleSwitchLimits | undefined;
}

/** The SLO of a request with `outputTokens` output tokens; undefined: no bounds. */
export type SloRule = (trace: RequestLengths, outputTokens: number) => Slo | undefined;

export function lengthAdmission(
  { kind, policy, forecast = 'td', decodeUs, refusalProbabilityMax = 0.5, inlineTokens, roleSwitch }: AdmissionSettings,
  rule: SloRule,
  instances: readonly PredictedInstance[],
  capacityTokens: readonly number[],
  linkBytesPerSecond: number | undefined,
): AdmissionConfig<LengthRequest> {
  const members = instances.map(({ role, machine }, i) => {
    if (role === 'prefill' && roleSwitch === undefined) return undefined;
    const steps = new ModelPredictor(machine.cost);
    const receiveTokens = machine.handOff?.receiveTokens ?? 0;
    return { steps, capacityTokens: capacityTokens[i], receiveTokens, takesHandOffs: role === 'decode' };
  });
  const [{ machine, nic }] = instances;
  const decoder = instances.find(({ role }) => role === 'decode');
  const bytesPerUs =
    Math.min(
      decoder?.nic.bytesPerSecond ?? nic.bytesPerSecond,
      nic.bytesPerSecond,
      linkBytesPerSecond ?? Number.POSITIVE_INFINITY,
    ) / 1e6;
  const handOff: HandOffTransfer | undefined = decoder && {
    transferUs: (_from, _to, tokens) => (tokens * machine.cost.kvBytesPerToken) / bytesPerUs,
    latencyUs: () => 0,
    layerWise: machine.handOff?.layerWise === true,
  };
  return {
    kind,
    policy,
    forecast: { kind: forecast, decodeUs, refusalProbabilityMax },
    requests: {
      slo: ({ trace }, tokens) => rule(trace, tokens),
      priorityOf: ({ trace }) => trace.priority ?? 0,
      outputClass: ({ trace }) => `${trace.sloClass ?? ''}\n${trace.tenant ?? ''}`,
      outputTokens: ({ outputs }) => outputs,
    },
    members,
    handOff,
    inline: inlineLimits(inlineTokens, instances),
    besidePrefill: { stepUsDecoding: machine.limits.stepUsDecoding, rowsMin: machine.blockTokens },
  };
}

/** The limits that every decode instance meets: one chunk in a step with the maximum number of sequences. */
function inlineLimits(
  inlineTokens: number | undefined,
  instances: readonly PredictedInstance[],
): InlineLimits | undefined {
  const limits = instances.filter(({ role }) => role === 'decode').map(({ machine }) => machine.limits);
  if (inlineTokens === undefined || limits.length === 0) return undefined;
  return {
    tokensMax: Math.min(inlineTokens, ...limits.map(({ tokensMax, sequencesMax }) => tokensMax - sequencesMax)),
    stepUsMax: Math.min(...limits.map(({ stepUsDecoding }) => stepUsDecoding)),
  };
}

/** SLOs relative to the first prefill instance and the first decode instance. */
export function sloRule(
  { slo, classes }: Pick<AdmissionSettings, 'slo' | 'classes'>,
  instances: readonly PredictedInstance[],
): SloRule {
  if (slo === undefined && classes === undefined) return () => undefined;
  const [{ machine }] = instances;
  const decoder = instances.find(({ role }) => role !== 'prefill')?.machine ?? machine;
  const prefill = new ChunkedPrefill(new ModelPredictor(machine.cost), machine.limits.tokensMax);
  const steps = new ModelPredictor(decoder.cost);
  return ({ index, inputTokens, sloClass }, outputTokens) => {
    const named = sloClass === undefined ? slo : classes?.get(sloClass);
    if (named === undefined && sloClass !== undefined)
      throw new RangeError(`Cannot judge request ${index}: its class ${sloClass} is none of --slo-classes`);
    return named && sloOf(named, { promptTokens: inputTokens, outputTokens }, { prefill, steps });
  };
}
