// The conductor's gate: which instance decodes a request, and whether it is taken, from what both pools are predicted to do.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { InstanceRole } from '../../protocol/instance-report.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { Refusal } from '../../protocol/refusals.ts';
import type { Prediction } from '../../protocol/request-trace.ts';
import type { Slo } from '../../protocol/slo.ts';
import { type AdmissionKind, admissionRefusal, type Loads, overload } from './admission-policy.ts';
import { DecodeForecast, type ForecastSettings } from './decode-forecast.ts';
import { type DecodeArrival, type DecodeMember, DecodePool, type Decoding, idleDecode } from './decode-pool.ts';
import { ErrorBound } from './error-bound.ts';
import { type InlineChoice, type InlineLimits, InlinePrefill } from './inline-prefill.ts';

export interface AdmissionConfig<Request> {
  readonly kind: AdmissionKind;
  readonly forecast: ForecastSettings;
  /** What a request may wait, were its output to have so many tokens; undefined: as long as it takes. */
  readonly slo: (request: Request, outputTokens: number) => Slo | undefined;
  /** What is known before it runs of how long its output will be: those of one kind are alike. */
  readonly kindOf: (request: Request) => string;
  /** Tokens that have come of it. */
  readonly outputTokens: (request: Request) => number;
  /** (instances): what is known of each as one that decodes. */
  readonly members: readonly (DecodeMember | undefined)[];
  /** Of a hand-off, what computing a prompt in `prefillUs` does not hide. */
  readonly handOffUs: (tokens: number, prefillUs: number) => number;
  /** Short prompts are computed where they decode; undefined: none is. */
  readonly inline?: InlineLimits | undefined;
}

/** An accepted request that decodes somewhere, until it ends. */
export interface AdmissionResult {
  readonly slo: Slo | undefined;
  readonly decoding: Decoding;
  /** Until it decodes, as it was said to the request, and for each token. */
  readonly predicted: Prediction | undefined;
  /** Those of one kind are alike; undefined where nothing is learned. */
  readonly kind: string | undefined;
  /** Tokens that have come of it. */
  readonly outputTokens: () => number;
}

/** A request and where it would go. */
interface Question {
  readonly promptTokens: number;
  /** Until its prefill begins, and how long that takes. */
  readonly waitUs: number;
  readonly prefillUs: number;
  /** It is computed where it decodes: nothing is handed off. */
  readonly inline: boolean;
  /** Who decodes it; undefined where its first token is its last. */
  readonly member: InstanceIndex | undefined;
}

export interface Verdict {
  /** Undefined, both, for what may wait as long as it takes. */
  readonly predicted: Prediction | undefined;
  readonly slo: Slo | undefined;
  readonly refusal: Refusal | undefined;
}

/** How full the pools are: 1 is what may be. */
export interface PoolLoads {
  readonly prefill: number;
  readonly decode: number;
}

/** Nothing is predicted: requests count alike. */
const unpredicted: DecodeMember = {
  steps: { predictUs: ({ rows }) => rows },
  capacityTokens: Number.POSITIVE_INFINITY,
  landingTokens: Number.POSITIVE_INFINITY,
  takesOthers: true,
};

/** Without a configuration everything is taken, and the instance with the fewest requests decodes. */
export class AdmissionController<Request> {
  readonly #config: AdmissionConfig<Request> | undefined;
  readonly #pool: DecodePool;
  readonly #inline: InlinePrefill | undefined;
  /** Of first tokens that take a good part of what they may. */
  readonly #lateness = new ErrorBound();
  readonly #forecast: DecodeForecast;
  /** Of the latest request that waits for first and next tokens. */
  #slo: Slo | undefined;

  /** @param roles (instances) */
  constructor(roles: readonly InstanceRole[], config: AdmissionConfig<Request> | undefined) {
    this.#config = config;
    this.#pool = new DecodePool(config?.members ?? roles.map(() => unpredicted));
    for (const [i, role] of roles.entries()) this.setRole(i, role);
    this.#forecast = new DecodeForecast(this.#pool, config?.forecast ?? nothingForecast);
    this.#inline = config?.inline && new InlinePrefill(this.#pool, roles.length, config.inline);
  }

  /** What is there ends there. */
  setRole(instance: InstanceIndex, role: InstanceRole): void {
    this.#pool.setRole(instance, role === 'decode' ? 'others' : role === 'mixed' ? 'own' : 'none');
  }

  /** Of all who decode for others and all whose prompts should be there by now, in full instances; 0 while nobody has said what it may wait. */
  decodeDemand(nowUs: number): number {
    if (this.#slo === undefined) return 0;
    return this.#pool.at(nowUs, nowUs, Number.POSITIVE_INFINITY).demand(this.#slo.tbtUs);
  }

  /** Where a prompt is short enough to be computed where it decodes. @param cachedTokens of the prompt, by instance @param holds undefined: all could */
  chooseInline(
    nowUs: number,
    request: Request,
    promptTokens: number,
    cachedTokens: (instance: InstanceIndex) => number,
    holds?: (instance: InstanceIndex) => boolean,
  ): InlineChoice | undefined {
    if (this.#inline === undefined) return undefined;
    return this.#inline.choose(nowUs, { promptTokens, tbtUs: this.#tbtUsOf(request), holds }, cachedTokens);
  }

  /** So many tokens are to be computed where they decode, */
  inlined(instance: InstanceIndex, tokens: number): void {
    this.#inline?.add(instance, tokens);
  }

  /** and have been, or will not be. */
  inlineDone(instance: InstanceIndex, tokens: number): void {
    this.#inline?.remove(instance, tokens);
  }

  #tbtUsOf(request: Request): number {
    return this.#config?.slo(request, 1)?.tbtUs ?? Number.POSITIVE_INFINITY;
  }

  /**
   * Who decodes what is prefilled elsewhere, by `atUs` or so; undefined when none is left.
   * @param holds which instances could hold the request; undefined: all could
   */
  choose(
    nowUs: number,
    promptTokens: number,
    atUs: number,
    holds?: (instance: InstanceIndex) => boolean,
  ): InstanceIndex | undefined {
    if (!this.#predicts) return this.#pool.choose(promptTokens, holds);
    const joinsUs = nowUs + this.#joinsAfterUs(atUs - nowUs);
    return this.#forecast.at(nowUs, joinsUs).chooseCounted(promptTokens, holds);
  }

  get #predicts(): boolean {
    return this.#config?.kind === 'predictive';
  }

  /** When a request joins that is predicted to have its first token after so long. */
  #joinsAfterUs(ttftUs: number): number {
    return this.#predicts ? this.#forecast.joinsAfterUs(ttftUs) : ttftUs;
  }

  look(nowUs: number, request: Request, { promptTokens, waitUs, prefillUs, inline, member }: Question): Verdict {
    const config = this.#config;
    if (config === undefined) return taken;
    const outputTokens = this.#forecast.outputsOf(config.kindOf(request)).mean;
    const slo = config.slo(request, outputTokens);
    if (slo === undefined) return taken;
    const ttftUs = waitUs + prefillUs + (inline ? 0 : config.handOffUs(promptTokens, prefillUs));
    const joinsUs = nowUs + this.#joinsAfterUs(ttftUs);
    const pool = this.#predicts ? this.#forecast.at(nowUs, joinsUs) : this.#pool.now(nowUs);
    const decode = member === undefined ? idleDecode : pool.least(member, promptTokens);
    const { tbtUs, tbtUsMax, memory } = decode;
    const bounds = { ...slo, tbtUs: Math.min(slo.tbtUs, tbtUsMax) };
    const decodeLoad = tbtUs / bounds.tbtUs;
    const predicted = { ttftUs, tbtUs, outputTokens, decodeLoad };
    if (slo.ttftUs < Number.POSITIVE_INFINITY) this.#slo = slo;
    const loads: Loads = {
      ttft: (ttftUs + this.#lateness.us) / Math.min(slo.ttftUs, slo.completionUs),
      tbt: this.#predicts && member !== undefined ? this.#forecast.corrected(decodeLoad) : decodeLoad,
      memory,
      completion: (ttftUs + Math.max(0, outputTokens - 1) * tbtUs) / slo.completionUs,
    };
    const worst = overload(config.kind, loads);
    if (worst === 'tbt') this.#forecast.refused();
    if (worst === undefined) return { predicted, slo, refusal: undefined };
    const meets = {
      ...{ outputTokens, memory, decodeUs: this.#forecast.meanUs },
      ...{ ttftUs: ttftUs + this.#lateness.us, tbtUs: loads.tbt * bounds.tbtUs },
      completionUs: loads.completion * slo.completionUs,
    };
    return { predicted, slo, refusal: admissionRefusal(worst, meets, bounds) };
  }

  /** The request was taken. */
  add(
    nowUs: number,
    request: Request,
    { slo, predicted }: Pick<Verdict, 'slo' | 'predicted'>,
    coming: Pick<DecodeArrival, 'member' | 'tokens'>,
  ): AdmissionResult {
    const tbtUsMax = slo?.tbtUs ?? Number.POSITIVE_INFINITY;
    const joinsUs = nowUs + this.#joinsAfterUs(predicted?.ttftUs ?? 0);
    const config = this.#config;
    const kind = config?.kindOf(request);
    const outputs = kind === undefined ? undefined : this.#forecast.outputsOf(kind);
    const decoding = this.#pool.add(nowUs, { ...coming, joinsUs, tbtUsMax, outputs });
    return {
      slo,
      predicted,
      decoding,
      kind,
      outputTokens: () => config?.outputTokens(request) ?? 0,
    };
  }

  joined(nowUs: number, { decoding, slo, predicted }: AdmissionResult): void {
    const { joined, addedUs } = decoding;
    if (joined) return;
    this.#pool.joined(nowUs, decoding);
    if (slo === undefined || predicted === undefined) return;
    const { ttftUs } = predicted;
    if (ttftUs > slo.ttftUs / 2) this.#lateness.observe(ttftUs, nowUs - addedUs, slo.ttftUs);
    if (!this.#predicts) return;
    this.#forecast.joined(ttftUs, nowUs - addedUs);
    if (predicted.decodeLoad > 0) this.#forecast.came(predicted.decodeLoad, false);
  }

  /** It decodes there from now on. */
  move({ decoding }: AdmissionResult, member: InstanceIndex): void {
    this.#pool.move(decoding, member);
  }

  /** It is about to end: what it was like is learned. */
  ending(nowUs: number, { kind, decoding, predicted, outputTokens }: AdmissionResult, event: GenerationEvent): void {
    if (event.kind === 'finished' && kind !== undefined)
      this.#forecast.ended(kind, outputTokens(), nowUs - decoding.joinsUs);
    if (event.kind === 'failed' && event.cause?.at === 'decode' && this.#predicts && predicted !== undefined)
      this.#forecast.came(predicted.decodeLoad, true);
  }

  ended({ decoding }: AdmissionResult): void {
    this.#pool.remove(decoding);
  }

  lost(instance: InstanceIndex): void {
    this.#pool.lost(instance);
  }

  back(instance: InstanceIndex): void {
    this.#pool.back(instance);
  }

  /** Against what the latest request may wait; undefined while none had to. @param waitUs mean over the instances that prefill */
  loads(nowUs: number, waitUs: number): PoolLoads | undefined {
    if (this.#slo === undefined) return undefined;
    return { prefill: waitUs / this.#slo.ttftUs, decode: this.#pool.now(nowUs).meanTbtUs / this.#slo.tbtUs };
  }

  /** @param inlineTokens (instances): of prompts that are to be computed where they decode */
  check(inlineTokens: Float64Array): void {
    this.#pool.check();
    this.#inline?.check(inlineTokens);
  }
}

const nothingForecast: ForecastSettings = { kind: 'td', decodeUs: 0, oddsMax: 0.5 };
const taken: Verdict = { predicted: undefined, slo: undefined, refusal: undefined };
