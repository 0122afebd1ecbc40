// Who is taken by token instances: what requests may wait, by their classes, against steps and prefills as instances have told of them.

import type { PrefillPredictor } from '../../cost/prefill.ts';
import { StepCost } from '../../cost/step-cost.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot } from '../../protocol/ports.ts';
import type { Slo } from '../../protocol/slo.ts';
import type { BatchLimits } from '../../scheduler/batching/step-budget.ts';
import type { AdmissionConfig, AdmissionModel } from './admission-controller.ts';
import type { DecodeMember } from './decode-pool.ts';
import type { AdmissionSettings } from './length-admission.ts';
import { sloOf } from './slo.ts';

const forever: Slo = {
  ttftUs: Number.POSITIVE_INFINITY,
  tbtUs: Number.POSITIVE_INFINITY,
  completionUs: Number.POSITIVE_INFINITY,
};

interface Member extends DecodeMember {
  readonly steps: StepCost;
  capacityTokens: number;
  receiveTokens: number;
}

/** Each instance tells what it has learned of its steps; prefills are learned by placement. */
export class TokenAdmission implements AdmissionModel<GenerationRequest> {
  readonly #settings: AdmissionSettings;
  readonly #limits: BatchLimits;
  readonly #members: readonly Member[];
  #prefills: readonly PrefillPredictor[] = [];
  readonly #outputs = new WeakMap<GenerationRequest, { count: number }>();
  /** By the names of tries under way. */
  readonly #counting = new Map<RequestId, { count: number }>();

  /** @param limits of each instance's steps */
  constructor(settings: AdmissionSettings, instances: number, limits: BatchLimits) {
    this.#settings = settings;
    this.#limits = limits;
    this.#members = Array.from({ length: instances }, () => {
      return { steps: new StepCost(), capacityTokens: 0, receiveTokens: 0, takesHandOffs: true };
    });
  }

  /** An instance is there. @param receiveTokens of prompts of others that fit beside what is its own */
  instanceJoined(instance: InstanceIndex, capacityTokens: number, receiveTokens: number): void {
    const member = this.#members[instance];
    member.capacityTokens = capacityTokens;
    member.receiveTokens = receiveTokens;
  }

  /** @param prefills (instances) */
  config(prefills: readonly PrefillPredictor[]): AdmissionConfig<GenerationRequest> {
    const { kind, forecast = 'td', decodeUs, oddsMax = 0.5, inlineTokens } = this.#settings;
    const { tokensMax, sequencesMax, stepUsDecoding } = this.#limits;
    this.#prefills = prefills;
    return {
      kind,
      forecast: { kind: forecast, decodeUs, oddsMax },
      requests: this,
      members: this.#members,
      // KV pages leave during the prefill; what is left afterwards takes next to no time.
      handOff: undefined,
      inline:
        inlineTokens === undefined
          ? undefined
          : { tokensMax: Math.min(inlineTokens, tokensMax - sequencesMax), stepUsMax: stepUsDecoding },
    };
  }

  /** What a request may wait; undefined: nobody has said. @throws RangeError for a class that there is not */
  slo({ prompt, sloClass, batch = false }: GenerationRequest, outputTokens: number): Slo | undefined {
    const { slo, classes, kind } = this.#settings;
    const named = sloClass === undefined ? slo : classes?.get(sloClass);
    if (named === undefined && sloClass !== undefined)
      throw new RangeError(`Cannot judge request: its class ${sloClass} is none of slo-classes`);
    // Where nobody is refused it is foretold all the same.
    if (named === undefined || batch) return kind === 'none' ? forever : undefined;
    const [{ steps }] = this.#members;
    const lengths = { promptTokens: prompt.length, outputTokens };
    return sloOf(named, lengths, { prefill: this.#prefills[0], steps });
  }

  outputClass({ sloClass = '', tenant = '' }: GenerationRequest): string {
    return `${sloClass}\n${tenant}`;
  }

  /** Tokens of earlier attempts included. */
  outputTokens(request: GenerationRequest): number {
    return (request.resumed?.tokens.length ?? 0) + (this.#outputs.get(request)?.count ?? 0);
  }

  /** As an instance takes it: with what it may wait for each token. */
  forwarded(request: GenerationRequest): GenerationRequest {
    const counter = { count: 0 };
    this.#outputs.set(request, counter);
    this.#counting.set(request.id, counter);
    const tbtUsMax = this.slo(request, 1)?.tbtUs ?? Number.POSITIVE_INFINITY;
    return tbtUsMax === Number.POSITIVE_INFINITY ? request : { ...request, tbtUsMax };
  }

  /** Before the conductor hears it. */
  received(id: RequestId, event: GenerationEvent): void {
    const counter = this.#counting.get(id);
    if (counter !== undefined && event.kind === 'tokens') counter.count += event.tokens.length;
    if (event.kind === 'finished' || event.kind === 'failed') this.forget(id);
  }

  forget(id: RequestId): void {
    this.#counting.delete(id);
  }

  /** Tries whose outputs are counted. */
  get counted(): number {
    return this.#counting.size;
  }

  /** What an instance has told of itself. */
  observe(instance: InstanceIndex, { stepCost }: InstanceSnapshot): void {
    if (stepCost !== undefined) this.#members[instance].steps.take(stepCost);
  }
}
