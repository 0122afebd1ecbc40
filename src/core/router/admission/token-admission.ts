// Admission of requests with token ids: SLOs by class, and step and prefill times that instances report.

import { pageTokens } from '../../../util/step.ts';
import type { PrefillPredictor } from '../../cost/prefill.ts';
import { StepCost } from '../../cost/step-cost.ts';
import type { TransferConfig } from '../../cost/transfer-times.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot } from '../../protocol/ports.ts';
import type { Slo } from '../../protocol/slo.ts';
import type { BatchLimits } from '../../scheduler/batching/step-budget.ts';
import type { AdmissionConfig, AdmissionModel, HandOffTransfer } from './admission-controller.ts';
import type { DecodeMember } from './decode-pool.ts';
import type { AdmissionSettings } from './length-admission.ts';
import { sloOf } from './slo.ts';

const unbounded: Slo = {
  ttftUs: Number.POSITIVE_INFINITY,
  tbtUs: Number.POSITIVE_INFINITY,
  completionUs: Number.POSITIVE_INFINITY,
};

/** The KV of a prompt leaves layer by layer. The decode instance receives messages between two steps. */
function handOffOf({ ends, bytesPerToken }: TransferConfig): HandOffTransfer {
  return {
    transferUs: (from, to, tokens) =>
      (tokens * bytesPerToken * 1e6) / Math.min(ends[from].bytesPerSecond, ends[to].bytesPerSecond),
    latencyUs: (_from, to) => ends[to].us,
    layerWise: true,
  };
}

interface Member extends DecodeMember {
  readonly steps: StepCost;
  capacityTokens: number;
  receiveTokens: number;
}

/** Instances report their learned step times; placement learns the prefill times. */
export class TokenAdmission implements AdmissionModel<GenerationRequest> {
  readonly #settings: AdmissionSettings;
  readonly #limits: BatchLimits;
  readonly #members: readonly Member[];
  #prefills: readonly PrefillPredictor[] = [];
  readonly #outputs = new WeakMap<GenerationRequest, { count: number }>();
  /** By the ids of running attempts. */
  readonly #counting = new Map<RequestId, { count: number }>();

  /** @param limits of the steps of each instance */
  constructor(settings: AdmissionSettings, instances: number, limits: BatchLimits) {
    this.#settings = settings;
    this.#limits = limits;
    this.#members = Array.from({ length: instances }, () => {
      return { steps: new StepCost(), capacityTokens: 0, receiveTokens: 0, takesHandOffs: true };
    });
  }

  /** @param receiveTokens prompt tokens that its receive buffers hold */
  instanceJoined(instance: InstanceIndex, capacityTokens: number, receiveTokens: number): void {
    const member = this.#members[instance];
    member.capacityTokens = capacityTokens;
    member.receiveTokens = receiveTokens;
  }

  /** @param prefills (instances) @param transfers undefined: hand-offs are not predicted */
  config(prefills: readonly PrefillPredictor[], transfers?: TransferConfig): AdmissionConfig<GenerationRequest> {
    const { kind, forecast = 'td', decodeUs, refusalProbabilityMax = 0.5, inlineTokens } = this.#settings;
    const { tokensMax, sequencesMax, stepUsDecoding } = this.#limits;
    this.#prefills = prefills;
    return {
      kind,
      forecast: { kind: forecast, decodeUs, refusalProbabilityMax },
      requests: this,
      members: this.#members,
      handOff: transfers && handOffOf(transfers),
      besidePrefill: { stepUsDecoding, rowsMin: pageTokens },
      inline:
        inlineTokens === undefined
          ? undefined
          : { tokensMax: Math.min(inlineTokens, tokensMax - sequencesMax), stepUsMax: stepUsDecoding },
    };
  }

  /** Undefined: the request has no SLO. @throws RangeError for an unknown class */
  slo({ prompt, sloClass, batch = false }: GenerationRequest, outputTokens: number): Slo | undefined {
    const { slo, classes, kind } = this.#settings;
    const named = sloClass === undefined ? slo : classes?.get(sloClass);
    if (named === undefined && sloClass !== undefined)
      throw new RangeError(`Cannot judge request: its class ${sloClass} is none of slo-classes`);
    // The policy `none` refuses nothing, and still predicts.
    if (named === undefined || batch) return kind === 'none' ? unbounded : undefined;
    const [{ steps }] = this.#members;
    const lengths = { promptTokens: prompt.length, outputTokens };
    return sloOf(named, lengths, { prefill: this.#prefills[0], steps });
  }

  priorityOf({ priority }: GenerationRequest): number {
    return priority;
  }

  outputClass({ sloClass = '', tenant = '' }: GenerationRequest): string {
    return `${sloClass}\n${tenant}`;
  }

  /** Tokens of earlier attempts included. */
  outputTokens(request: GenerationRequest): number {
    return (request.resumed?.tokens.length ?? 0) + (this.#outputs.get(request)?.count ?? 0);
  }

  /** The request as its instance receives it: with its TBT bound, and whether its decode instance judges it once more. */
  forwarded(request: GenerationRequest): GenerationRequest {
    const counter = { count: 0 };
    this.#outputs.set(request, counter);
    this.#counting.set(request.id, counter);
    const tbtUsMax = this.slo(request, 1)?.tbtUs ?? Number.POSITIVE_INFINITY;
    const bounded = tbtUsMax === Number.POSITIVE_INFINITY ? request : { ...request, tbtUsMax };
    return this.#settings.kind === 'none' || request.batch === true ? bounded : { ...bounded, rechecks: true };
  }

  /** Takes an event of an attempt, before the conductor does. */
  received(id: RequestId, event: GenerationEvent): void {
    const counter = this.#counting.get(id);
    if (counter !== undefined && event.kind === 'tokens') counter.count += event.tokens.length;
    if (event.kind === 'finished' || event.kind === 'failed') this.forget(id);
  }

  forget(id: RequestId): void {
    this.#counting.delete(id);
  }

  /** Attempts with counted outputs. */
  get counted(): number {
    return this.#counting.size;
  }

  /** Takes the learned step times of an instance. */
  observe(instance: InstanceIndex, { stepCost }: InstanceSnapshot): void {
    if (stepCost !== undefined) this.#members[instance].steps.setCoefficients(stepCost);
  }
}
