// The conductor's gate: which instance decodes a request, and whether it is taken, from what both pools are predicted to do.
import { type AdmissionKind, type Loads, overload } from '../policy/admission/admission.ts';
import { type DecodeLoad, type DecodeMember, DecodePool, type Decoding } from '../policy/admission/decode-pool.ts';
import { ErrorBound } from '../policy/admission/error-bound.ts';
import { type InlineChoice, type InlineLimits, InlinePrefill } from '../policy/admission/inline-prefill.ts';
import type { Slo } from '../policy/admission/slo.ts';
import { type Refusal, refusedLate } from './admission.ts';
import type { InstanceIndex } from './messages.ts';

export interface AdmissionConfig<Request> {
  readonly kind: AdmissionKind;
  /** How long every decode is taken to last (t_d), where decode is predicted. */
  readonly decodeUs: number;
  /** What a request may wait; undefined: as long as it takes. */
  readonly slo: (request: Request) => Slo | undefined;
  /** (instances): what is known of each as one that decodes. */
  readonly members: readonly (DecodeMember | undefined)[];
  /** Of a hand-off, what computing a prompt in `prefillUs` does not hide. */
  readonly handOffUs: (tokens: number, prefillUs: number) => number;
  /** Short prompts are computed where they decode; undefined: none is. */
  readonly inline?: InlineLimits | undefined;
}

/** What a request is predicted to meet. */
export interface Prediction {
  readonly ttftUs: number;
  readonly tbtUs: number;
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
  /** Undefined for what may wait as long as it takes. */
  readonly predicted: Prediction | undefined;
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
export class Gate<Request> {
  readonly #config: AdmissionConfig<Request> | undefined;
  readonly #pool: DecodePool;
  readonly #inline: InlinePrefill | undefined;
  /** Of first tokens that take a good part of what they may. */
  readonly #lateness = new ErrorBound();
  /** Of the latest request that has one. */
  #slo: Slo | undefined;

  /** @param decodes (instances): does it decode what others prefill? */
  constructor(decodes: readonly boolean[], config: AdmissionConfig<Request> | undefined) {
    this.#config = config;
    this.#pool = new DecodePool(config?.members ?? decodes.map((takes) => (takes ? unpredicted : undefined)));
    this.#inline = config?.inline && new InlinePrefill(this.#pool, decodes.length, config.inline);
  }

  /** Where a prompt is short enough to be computed where it decodes. @param cachedTokens of the prompt, by instance */
  chooseInline(
    nowUs: number,
    request: Request,
    promptTokens: number,
    cachedTokens: (instance: InstanceIndex) => number,
  ): InlineChoice | undefined {
    if (this.#inline === undefined) return undefined;
    return this.#inline.choose(nowUs, { promptTokens, tbtUs: this.#tbtUsOf(request) }, cachedTokens);
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
    return this.#config?.slo(request)?.tbtUs ?? Number.POSITIVE_INFINITY;
  }

  /** Who decodes what is prefilled elsewhere; undefined when none is left. */
  choose(promptTokens: number): InstanceIndex | undefined {
    return this.#pool.choose(promptTokens);
  }

  look(nowUs: number, request: Request, { promptTokens, waitUs, prefillUs, inline, member }: Question): Verdict {
    const config = this.#config;
    if (config === undefined) return taken;
    const slo = config.slo(request);
    if (slo === undefined) return taken;
    const ttftUs = waitUs + prefillUs + (inline ? 0 : config.handOffUs(promptTokens, prefillUs));
    const pool =
      config.kind === 'predictive' ? this.#pool.at(nowUs, nowUs + ttftUs, config.decodeUs) : this.#pool.now(nowUs);
    const decode = member === undefined ? idle : pool.least(member, promptTokens);
    const predicted = { ttftUs, tbtUs: decode.tbtUs };
    this.#slo = slo;
    const loads: Loads = {
      ttft: (ttftUs + this.#lateness.us) / slo.ttftUs,
      tbt: decode.tbtUs / slo.tbtUs,
      memory: decode.memory,
    };
    const worst = overload(config.kind, loads);
    return { predicted, refusal: worst && refusedLate(worst, predicted, slo, decode.memory) };
  }

  /** The request was taken. */
  add(nowUs: number, request: Request, member: InstanceIndex, promptTokens: number, joinsUs: number): Decoding {
    return this.#pool.add(nowUs, member, promptTokens, joinsUs, this.#tbtUsOf(request));
  }

  joined(nowUs: number, decoding: Decoding): void {
    const { joined, joinsUs, addedUs } = decoding;
    if (joined) return;
    const slo = this.#slo;
    if (slo !== undefined && joinsUs - addedUs > slo.ttftUs / 2) this.#lateness.observe(joinsUs, nowUs, slo.ttftUs);
    this.#pool.joined(nowUs, decoding);
  }

  ended(decoding: Decoding): void {
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

const idle: DecodeLoad = { tbtUs: 0, memory: 0 };
const taken: Verdict = { predicted: undefined, refusal: undefined };
