// Admission control: chooses the decode instance of a request, and refuses requests that would miss their SLO (Mooncake, section 6).

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { InstanceRole, PlacedLoad } from '../../protocol/instance-report.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { Refusal } from '../../protocol/refusals.ts';
import type { Prediction } from '../../protocol/request-trace.ts';
import type { Slo } from '../../protocol/slo.ts';
import { stepUsBeside } from '../../scheduler/batching/step-budget.ts';
import {
  type AdmissionKind,
  type AdmissionPolicy,
  admissionPolicies,
  admissionRefusal,
  type Loads,
  overload,
} from './admission-policy.ts';
import { DecodeForecast, type ForecastSettings } from './decode-forecast.ts';
import { type DecodeArrival, type DecodeMember, DecodePool, type DecodingRequest, idleDecode } from './decode-pool.ts';
import { ErrorBound } from './error-bound.ts';
import { type CachedPrompt, type InlineChoice, type InlineLimits, InlinePrefill } from './inline-prefill.ts';
import { type LaterPrefills, meanTbtUs } from './tbt-beside.ts';

/** What admission reads of a request. */
export interface AdmissionModel<Request> {
  /** The SLO of the request if its output has `outputTokens` tokens; undefined: no bounds. */
  slo(request: Request, outputTokens: number): Slo | undefined;
  /** Requests of larger priority are computed first, and keep their memory. */
  priorityOf(request: Request): number;
  /** Requests of one class have outputs of similar length, as far as is known before they run. */
  outputClass(request: Request): string;
  /** Output tokens so far. */
  outputTokens(request: Request): number;
}

/** The transfer of KV from the prefill to the decode instance. */
export interface HandOffTransfer {
  /** Time between two instances for the KV of `tokens` tokens. */
  transferUs(from: InstanceIndex, to: InstanceIndex, tokens: number): number;
  /** Until the decode instance has received that the last byte has arrived. */
  latencyUs(from: InstanceIndex, to: InstanceIndex): number;
  /** KV leaves layer by layer during the prefill (Mooncake, section 5.2). */
  readonly layerWise: boolean;
}

export interface AdmissionConfig<Request> {
  readonly kind: AdmissionKind;
  /** Judges before prefill instead of `kind`. */
  readonly policy?: AdmissionPolicy | undefined;
  readonly forecast: ForecastSettings;
  readonly requests: AdmissionModel<Request>;
  /** (instances): each as a decode instance; undefined for those that never decode. */
  readonly members: readonly (DecodeMember | undefined)[];
  /** Undefined: a hand-off takes no time after the prefill. */
  readonly handOff?: HandOffTransfer | undefined;
  /** Short prompts are computed on the instance that decodes them; undefined: none is. */
  readonly inline?: InlineLimits | undefined;
  /** Steps of mixed instances with prefill beside decode: their time, and rows of the smallest chunk. */
  readonly besidePrefill?: { readonly stepUsDecoding: number; readonly rowsMin: number } | undefined;
}

/** An accepted request on its decode instance, until it ends. */
export interface AdmittedRequest<Request = unknown> {
  readonly request: Request;
  readonly slo: Slo | undefined;
  readonly decoding: DecodingRequest;
  readonly predicted: Prediction | undefined;
  /** Undefined without a configuration: nothing is learned. */
  readonly outputClass: string | undefined;
}

/** A request and its planned route. */
interface PlannedRequest {
  readonly promptTokens: number;
  /** Predicted time until the prefill starts. */
  readonly waitUs: number;
  /** Predicted duration of the prefill. */
  readonly prefillUs: number;
  /** The instance that computes the prompt. */
  readonly from: InstanceIndex;
  /** The decode instance; undefined: the request has one output token, which the prefill computes. */
  readonly member: InstanceIndex | undefined;
  readonly outputTokensMax: number;
  /** Later prompts that the decode instance computes beside the output; undefined: it computes none. */
  readonly later: LaterPrefills | undefined;
}

export interface AdmissionVerdict {
  /** Undefined for a request without an SLO. */
  readonly predicted: Prediction | undefined;
  readonly slo: Slo | undefined;
  readonly refusal: Refusal | undefined;
}

/** Predicted latencies of the pools, divided by their bounds: 1 is full. */
export interface PoolLoads {
  readonly prefill: number;
  readonly decode: number;
}

/** Without a configuration the load of a decode instance is the number of its requests. */
const unpredicted: DecodeMember = {
  steps: { predictUs: ({ rows }) => rows },
  capacityTokens: Number.POSITIVE_INFINITY,
  receiveTokens: Number.POSITIVE_INFINITY,
  takesHandOffs: true,
};

const defaultForecast: ForecastSettings = { kind: 'td', decodeUs: 0, refusalProbabilityMax: 0.5 };
const accepted: AdmissionVerdict = { predicted: undefined, slo: undefined, refusal: undefined };

/** Without a configuration every request is accepted, and the instance with the fewest requests decodes. */
export class AdmissionController<Request> {
  readonly #config: AdmissionConfig<Request> | undefined;
  /** The policy uses the forecast of the decode pool. */
  readonly #forecasts: boolean;
  readonly #pool: DecodePool;
  readonly #inline: InlinePrefill | undefined;
  /** By priority: error of the predicted TTFTs above half of their bound. */
  readonly #ttftErrors = new Map<number, ErrorBound>();
  readonly #forecast: DecodeForecast;
  /** Of the latest request with a TTFT bound. */
  #slo: Slo | undefined;

  /** @param roles (instances) */
  constructor(roles: readonly InstanceRole[], config: AdmissionConfig<Request> | undefined) {
    this.#config = config;
    this.#forecasts = config !== undefined && admissionPolicies[config.kind].forecastsDecode;
    this.#pool = new DecodePool(config?.members ?? roles.map(() => unpredicted));
    for (const [i, role] of roles.entries()) this.setRole(i, role);
    this.#forecast = new DecodeForecast(this.#pool, config?.forecast ?? defaultForecast);
    this.#inline = config?.inline && new InlinePrefill(this.#pool, roles.length, config.inline);
  }

  /** The role applies to new requests; those that the instance has end there. */
  setRole(instance: InstanceIndex, role: InstanceRole): void {
    this.#pool.setRole(instance, role === 'decode' ? 'others' : role === 'mixed' ? 'own' : 'none');
  }

  /**
   * Decode work of this conductor in full instances, with prompts whose prefill should have ended by now; 0 while no request has an SLO.
   */
  decodeDemand(nowUs: number): number {
    if (this.#slo === undefined) return 0;
    return this.#pool.countOwn(nowUs).demand(this.#slo.tbtUs);
  }

  /** The decode instance that also computes a short prompt; undefined: another instance computes it. @param eligible as for `chooseDecoder` */
  chooseInline(
    nowUs: number,
    request: Request,
    promptTokens: number,
    cached: CachedPrompt,
    eligible?: Uint8Array,
  ): InlineChoice | undefined {
    if (this.#inline === undefined) return undefined;
    const tbtUs = this.#config?.requests.slo(request, 1)?.tbtUs ?? Number.POSITIVE_INFINITY;
    return this.#inline.choose(nowUs, { promptTokens, tbtUs, eligible }, cached);
  }

  /** Counts prompt tokens that the instance which decodes them is to compute. */
  addInline(instance: InstanceIndex, tokens: number): void {
    this.#inline?.add(instance, tokens);
  }

  /** They are computed, or the request was cancelled. */
  removeInline(instance: InstanceIndex, tokens: number): void {
    this.#inline?.remove(instance, tokens);
  }

  /**
   * The instance that decodes a prompt which another instance computes; undefined when no decode instance is up.
   * @param prefilledUs predicted end of the prefill
   * @param eligible (instances): 1 where memory holds the request; undefined: everywhere
   */
  chooseDecoder(
    nowUs: number,
    promptTokens: number,
    prefilledUs: number,
    eligible?: Uint8Array,
  ): InstanceIndex | undefined {
    if (!this.#forecasts) return this.#pool.choose(promptTokens, eligible);
    const decodeStartUs = nowUs + this.#decodeStartsAfterUs(prefilledUs - nowUs);
    return this.#forecast.countAt(nowUs, decodeStartUs).chooseCounted(promptTokens, eligible);
  }

  /** Time until the decode of a request with this predicted TTFT starts. */
  #decodeStartsAfterUs(ttftUs: number): number {
    return this.#forecasts ? this.#forecast.decodeStartsAfterUs(ttftUs) : ttftUs;
  }

  #ttftErrorOf(priority: number): ErrorBound {
    const known = this.#ttftErrors.get(priority) ?? new ErrorBound();
    this.#ttftErrors.set(priority, known);
    return known;
  }

  /** Predicts the latencies of a request on its planned route, and refuses it when the policy does. */
  judge(nowUs: number, request: Request, planned: PlannedRequest): AdmissionVerdict {
    const config = this.#config;
    if (config === undefined) return accepted;
    const outputTokens = this.#forecast.outputsOf(config.requests.outputClass(request)).mean;
    const slo = config.requests.slo(request, outputTokens);
    if (slo === undefined) return accepted;
    const { promptTokens, waitUs, member } = planned;
    const prefillUs = this.#besideDecode(nowUs, planned);
    const ttftUs = waitUs + prefillUs + handOffUs(config.handOff, planned);
    const decodeStartUs = nowUs + this.#decodeStartsAfterUs(ttftUs);
    const priority = config.requests.priorityOf(request);
    const errorUs = this.#ttftErrorOf(priority).us;
    const pool = this.#forecasts
      ? this.#forecast.countAt(nowUs, decodeStartUs, priority)
      : this.#pool.countNow(nowUs, priority);
    const decode = member === undefined ? idleDecode : pool.leastLoad(member, promptTokens);
    const { tbtUs, tbtUsMax, memory } = decode;
    const bounds = { ...slo, tbtUs: Math.min(slo.tbtUs, tbtUsMax) };
    const decodeLoad = tbtUs / bounds.tbtUs;
    const predicted = { ttftUs, tbtUs: this.#meanTbtUs(planned, tbtUs, outputTokens), outputTokens, decodeLoad };
    if (slo.ttftUs < Number.POSITIVE_INFINITY) this.#slo = slo;
    const loads: Loads = {
      ttft: (ttftUs + errorUs) / Math.min(slo.ttftUs, slo.completionUs),
      tbt: this.#forecasts && member !== undefined ? this.#forecast.corrected(decodeLoad) : decodeLoad,
      memory,
      completion: (ttftUs + Math.max(0, outputTokens - 1) * tbtUs) / slo.completionUs,
    };
    const { kind, policy } = config;
    const worst = policy === undefined ? overload(kind, loads) : policy(loads, { promptTokens, outputTokens, slo });
    if (worst === 'tbt') this.#forecast.refused();
    if (worst === undefined) return { predicted, slo, refusal: undefined };
    const predictions = {
      outputTokens,
      memory,
      decodeUs: this.#forecast.meanUs,
      ttftUs: ttftUs + errorUs,
      tbtUs: loads.tbt * bounds.tbtUs,
      completionUs: loads.completion * slo.completionUs,
    };
    return { predicted, slo, refusal: admissionRefusal(worst, predictions, bounds) };
  }

  /**
   * Duration of a prefill in steps that also decode, from its duration on an idle instance. Decode rows take their part of each step; the
   * fixed part of a step is in their time already.
   */
  #besideDecode(nowUs: number, { member, later, prefillUs }: PlannedRequest): number {
    if (member === undefined || later === undefined) return prefillUs;
    const { tbtUs } = this.#pool.countNow(nowUs).load(member, 0);
    const sharedUs = this.#sharedStepUs(member, tbtUs);
    if (tbtUs === 0 || sharedUs <= tbtUs) return prefillUs;
    const rowsUs = prefillUs - this.#pool.leastStepUs(member);
    return Math.max(prefillUs, (rowsUs * sharedUs) / (sharedUs - tbtUs));
  }

  /** A step that decodes the counted rows, in `decodeUs` alone, with prefill beside them. */
  #sharedStepUs(member: InstanceIndex, decodeUs: number): number {
    const beside = this.#config?.besidePrefill;
    if (beside === undefined) return decodeUs;
    return Math.max(stepUsBeside(beside.stepUsDecoding, decodeUs), this.#pool.stepUsWith(member, beside.rowsMin, 0));
  }

  /** Mean time between the tokens of the request, beside later prefills. @param tbtUs of its batch alone */
  #meanTbtUs({ member, later, outputTokensMax }: PlannedRequest, tbtUs: number, outputTokens: number): number {
    const gaps = Math.min(outputTokens, outputTokensMax) - 1;
    if (member === undefined || later === undefined || gaps <= 0) return tbtUs;
    return meanTbtUs({ stepUs: tbtUs, sharedStepUs: this.#sharedStepUs(member, tbtUs), gaps }, later);
  }

  /** Counts an accepted request on its decode instance. */
  add(
    nowUs: number,
    request: Request,
    { slo, predicted }: Pick<AdmissionVerdict, 'slo' | 'predicted'>,
    arrival: Pick<DecodeArrival, 'member' | 'tokens'>,
  ): AdmittedRequest<Request> {
    const tbtUsMax = slo?.tbtUs ?? Number.POSITIVE_INFINITY;
    const decodeStartUs = nowUs + this.#decodeStartsAfterUs(predicted?.ttftUs ?? 0);
    const model = this.#config?.requests;
    const outputClass = model?.outputClass(request);
    const outputs = outputClass === undefined ? undefined : this.#forecast.outputsOf(outputClass);
    const priority = model?.priorityOf(request);
    const decoding = this.#pool.add(nowUs, { ...arrival, decodeStartUs, tbtUsMax, priority, outputs });
    return { request, slo, predicted, decoding, outputClass };
  }

  /** The decode of the request has started. */
  decodeStarted(nowUs: number, { decoding, slo, predicted }: AdmittedRequest): void {
    const { hasStarted, addedUs } = decoding;
    if (hasStarted) return;
    this.#pool.decodeStarted(nowUs, decoding);
    if (slo === undefined || predicted === undefined) return;
    const { ttftUs } = predicted;
    if (ttftUs > slo.ttftUs / 2) this.#ttftErrorOf(decoding.priority ?? 0).observe(ttftUs, nowUs - addedUs, slo.ttftUs);
    if (!this.#forecasts) return;
    this.#forecast.decodeStarted(ttftUs, nowUs - addedUs);
    if (predicted.decodeLoad > 0) this.#forecast.reachedDecode(predicted.decodeLoad, false);
  }

  /** The request migrates to another decode instance. */
  move({ decoding }: AdmittedRequest, member: InstanceIndex): void {
    this.#pool.move(decoding, member);
  }

  /** Learns output lengths, decode times and refusals from the last event of a request. */
  learn(
    nowUs: number,
    { request, outputClass, decoding, predicted }: AdmittedRequest<Request>,
    event: GenerationEvent,
  ): void {
    if (event.kind === 'finished' && outputClass !== undefined)
      this.#forecast.ended(
        outputClass,
        this.#config?.requests.outputTokens(request) ?? 0,
        nowUs - decoding.decodeStartUs,
      );
    if (event.kind === 'failed' && event.cause?.at === 'decode' && this.#forecasts && predicted !== undefined)
      this.#forecast.reachedDecode(predicted.decodeLoad, true);
  }

  ended({ decoding }: AdmittedRequest): void {
    this.#pool.remove(decoding);
  }

  /** Requests of other conductors decode on the instance. */
  setOthers(
    instance: InstanceIndex,
    { rows, tokens }: Pick<PlacedLoad, 'rows' | 'tokens'> = { rows: 0, tokens: 0 },
  ): void {
    this.#pool.setOthers(instance, rows, tokens);
  }

  setServedAttention(instance: InstanceIndex, permille: number): void {
    this.#pool.setServedAttention(instance, permille);
  }

  instanceFailed(instance: InstanceIndex): void {
    this.#pool.setOthers(instance, 0, 0);
    this.#pool.setServedAttention(instance, 0);
    this.#pool.instanceFailed(instance);
  }

  instanceJoined(instance: InstanceIndex): void {
    this.#pool.instanceJoined(instance);
  }

  /** Against the SLO of the latest request; undefined while no request has one. @param waitUs mean over the prefill instances */
  loads(nowUs: number, waitUs: number): PoolLoads | undefined {
    if (this.#slo === undefined) return undefined;
    return { prefill: waitUs / this.#slo.ttftUs, decode: this.#pool.countNow(nowUs).meanTbtUs / this.#slo.tbtUs };
  }

  /** @param inlineTokens (instances): prompt tokens that are to be computed on the instance that decodes them */
  check(inlineTokens: Float64Array): void {
    this.#pool.check();
    this.#inline?.check(inlineTokens);
  }
}

/** Time of a hand-off after the end of the prefill. */
function handOffUs(
  transfer: HandOffTransfer | undefined,
  { from, member, promptTokens, prefillUs }: PlannedRequest,
): number {
  if (transfer === undefined || member === undefined || member === from) return 0;
  const wholeUs = transfer.transferUs(from, member, promptTokens);
  return transfer.latencyUs(from, member) + (transfer.layerWise ? Math.max(0, wholeUs - prefillUs) : wholeUs);
}
