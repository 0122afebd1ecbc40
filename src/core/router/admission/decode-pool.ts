// What the instances that decode are about to do: who decodes there, who is on the way, and when each of them joins and leaves.
import type { StepPredictor } from '../../protocol/step-shape.ts';
import { decodeShape } from '../../protocol/step-shape.ts';
import type { LengthDistribution } from './output-lengths.ts';

export interface DecodeMember {
  readonly steps: Pick<StepPredictor, 'predictUs'>;
  /** Tokens whose keys and values fit at once. */
  readonly capacityTokens: number;
  /** Tokens of prompts that may be on the way at once: where they land is bounded. */
  readonly receiveTokens: number;
  /** False: it decodes only what it has prefilled. */
  readonly takesHandOffs: boolean;
}

/** A request on its way to an instance that decodes. */
export interface DecodeArrival {
  /** Index of the instance. */
  readonly member: number;
  readonly tokens: number;
  /** Predicted. */
  readonly joinsUs: number;
  /** What it may wait for each token; Infinity: as long as it takes. */
  readonly tbtUsMax: number;
  /** How long outputs like its own become, as far as is known. */
  readonly outputs?: LengthDistribution | undefined;
}

/** A request that decodes, or is to. */
export interface DecodingRequest extends DecodeArrival {
  readonly addedUs: number;
  member: number;
  /** When it joins: predicted, until it has. */
  joinsUs: number;
  joined: boolean;
}

export interface DecodeLoad {
  /** Of a step. */
  readonly tbtUs: number;
  /** What those who are there may wait for each token, the least of them. */
  readonly tbtUsMax: number;
  /** Of what fits. */
  readonly memory: number;
}

/** Where nobody decodes. */
export const idleDecode: DecodeLoad = { tbtUs: 0, tbtUsMax: Number.POSITIVE_INFINITY, memory: 0 };
const gone: DecodeLoad = { ...idleDecode, tbtUs: Number.POSITIVE_INFINITY, memory: 1 };

/** Requests count with their prompts and with what they should have generated since they joined, a token in each step. */
export class DecodePool {
  readonly #members: readonly (DecodeMember | undefined)[];
  readonly #decoding = new Set<DecodingRequest>();
  /** (members): all who decode or are on the way, and their tokens; tokens that are on the way. */
  readonly #requests: Int32Array;
  readonly #tokens: Float64Array;
  readonly #comingTokens: Float64Array;
  /** (instances): 1 for those that are not lost, decode, and decode what others prefill. */
  readonly #there: Uint8Array;
  readonly #decodes: Uint8Array;
  readonly #takes: Uint8Array;
  /** (members): what was counted last: sequences, their prompts' tokens, for how long they have decoded together, and the strictest TBT. */
  readonly #counted: {
    readonly rows: Float64Array;
    readonly keys: Float64Array;
    readonly decodedUs: Float64Array;
    readonly tbtUsMax: Float64Array;
  };

  /** @param members (instances): undefined for those that do not decode */
  constructor(members: readonly (DecodeMember | undefined)[]) {
    this.#members = members;
    this.#requests = new Int32Array(members.length);
    this.#tokens = new Float64Array(members.length);
    this.#comingTokens = new Float64Array(members.length);
    this.#counted = {
      rows: new Float64Array(members.length),
      keys: new Float64Array(members.length),
      decodedUs: new Float64Array(members.length),
      tbtUsMax: new Float64Array(members.length),
    };
    this.#there = new Uint8Array(members.length).fill(1);
    this.#decodes = Uint8Array.from(members, (member) => Number(member !== undefined));
    this.#takes = Uint8Array.from(members, (member) => Number(member?.takesHandOffs === true));
  }

  /**
   * The member whose step would be shortest with `tokens` more, all counted who decode there or are on the way; those where the prompt would
   * have to wait for a place to land come last. Undefined when none is left.
   * @param able who is asked; undefined: all
   */
  choose(tokens: number, able?: Uint8Array): number | undefined {
    const stepUs = (i: number, { steps }: DecodeMember): number =>
      steps.predictUs(decodeShape(this.#requests[i] + 1, this.#tokens[i] + tokens));
    return this.#shortest(tokens, stepUs, able);
  }

  /** The same with those who were counted last. */
  chooseCounted(tokens: number, able?: Uint8Array): number | undefined {
    return this.#shortest(tokens, (i) => this.load(i, tokens).tbtUs, able);
  }

  #shortest(
    tokens: number,
    stepUs: (index: number, member: DecodeMember) => number,
    able: Uint8Array | undefined,
  ): number | undefined {
    let best: number | undefined;
    let bestUs = Number.POSITIVE_INFINITY;
    for (let pass = 0; pass < 2 && best === undefined; pass++) {
      for (let i = 0; i < this.#members.length; i++) {
        const member = this.#members[i];
        if (member === undefined || !this.takesHandOffs(i) || able?.[i] === 0) continue;
        if (pass === 0 && this.#comingTokens[i] + tokens > member.receiveTokens) continue;
        const us = stepUs(i, member);
        if (us >= bestUs) continue;
        best = i;
        bestUs = us;
      }
    }
    return best;
  }

  add(nowUs: number, coming: DecodeArrival): DecodingRequest {
    const decoding = { ...coming, addedUs: nowUs, joined: false };
    this.#decoding.add(decoding);
    this.#tally(decoding, 1);
    return decoding;
  }

  joined(nowUs: number, decoding: DecodingRequest): void {
    if (decoding.joined || !this.#decoding.has(decoding)) return;
    decoding.joined = true;
    decoding.joinsUs = nowUs;
    this.#comingTokens[decoding.member] -= decoding.tokens;
  }

  /** It ended, or never came. */
  remove(decoding: DecodingRequest): void {
    if (!this.#decoding.delete(decoding)) return;
    this.#tally(decoding, -1);
  }

  #tally({ member, tokens, joined }: DecodingRequest, requests: 1 | -1): void {
    this.#requests[member] = this.#requests[member] + requests;
    this.#tokens[member] = this.#tokens[member] + requests * tokens;
    if (!joined) this.#comingTokens[member] = this.#comingTokens[member] + requests * tokens;
  }

  /** It goes on at another member. */
  move(decoding: DecodingRequest, member: number): void {
    if (!this.#decoding.has(decoding)) return;
    this.#tally(decoding, -1);
    decoding.member = member;
    this.#tally(decoding, 1);
  }

  instanceLost(member: number): void {
    this.#there[member] = 0;
  }

  /** It is there again. */
  instanceJoined(member: number): void {
    this.#there[member] = 1;
  }

  /** From now on it decodes what others prefill, or only what it has prefilled itself, or what is there until that has ended. */
  setRole(member: number, decodes: 'others' | 'own' | 'none'): void {
    if (this.#members[member] === undefined) return;
    this.#decodes[member] = Number(decodes !== 'none');
    this.#takes[member] = Number(decodes === 'others');
  }

  #isUp(index: number): boolean {
    return this.#there[index] === 1 && this.#decodes[index] === 1;
  }

  /** Those who decode now. */
  countNow(nowUs: number): this {
    return this.#count(nowUs, nowUs, ({ joined }) => Number(joined));
  }

  /**
   * Those who will decode at `atUs`, were every decode to last `decodeUs`: who will have joined by then, less who joined longer ago than
   * that (Mooncake, section 6.2: system level).
   */
  countAt(nowUs: number, atUs: number, decodeUs: number): this {
    return this.#count(nowUs, atUs, (_, fromUs) => Number(fromUs <= atUs && fromUs > atUs - decodeUs));
  }

  /** Those who are expected to decode at `atUs`: each with the chance that its output, like others of its kind, goes on until then (request level). */
  countExpected(nowUs: number, atUs: number): this {
    this.countNow(nowUs);
    const stepUs = this.#members.map((_, i) => Math.max(1, this.load(i, 0).tbtUs));
    return this.#count(nowUs, atUs, ({ member, joined, outputs }, fromUs) => {
      if (fromUs > atUs) return 0;
      if (outputs === undefined) return 1;
      const now = joined ? outputs.longer((nowUs - fromUs) / stepUs[member]) : 1;
      // Longer than any known: nobody can tell.
      return now === 0 ? 1 : outputs.longer((atUs - fromUs) / stepUs[member]) / now;
    });
  }

  /** @param share of a request that joined, or joins, at `fromUs` */
  #count(nowUs: number, atUs: number, share: (decoding: DecodingRequest, fromUs: number) => number): this {
    const { rows, keys, decodedUs, tbtUsMax } = this.#counted;
    for (const each of [rows, keys, decodedUs]) each.fill(0);
    tbtUsMax.fill(Number.POSITIVE_INFINITY);
    for (const decoding of this.#decoding) {
      const { member, joined, joinsUs } = decoding;
      // Whoever is late joins now at the earliest.
      const fromUs = joined ? joinsUs : Math.max(joinsUs, nowUs);
      const part = share(decoding, fromUs);
      if (part === 0) continue;
      rows[member] += part;
      keys[member] += part * decoding.tokens;
      if (joined) decodedUs[member] += part * (atUs - joinsUs);
      if (decoding.tbtUsMax < tbtUsMax[member]) tbtUsMax[member] = decoding.tbtUsMax;
    }
    return this;
  }

  /** Of a member with one more of `tokens` tokens (0: none), as counted last by `now` or `at`. */
  load(index: number, tokens: number): DecodeLoad {
    const member = this.#members[index];
    if (member === undefined || !this.#isUp(index)) return gone;
    const rows = this.#counted.rows[index] + (tokens > 0 ? 1 : 0);
    if (rows === 0) return idleDecode;
    const prompts = this.#counted.keys[index] + tokens;
    const keys = prompts + this.#counted.decodedUs[index] / member.steps.predictUs(decodeShape(rows, prompts));
    return {
      tbtUs: member.steps.predictUs(decodeShape(rows, keys)),
      tbtUsMax: this.#counted.tbtUsMax[index],
      memory: keys / member.capacityTokens,
    };
  }

  /** Does it decode what others prefill, and is it there? */
  takesHandOffs(index: number): boolean {
    return this.#takes[index] === 1 && this.#there[index] === 1;
  }

  /** The least that any of those who decode at a member may wait for a token, as counted last. */
  strictestTbtUs(index: number): number {
    return this.#counted.tbtUsMax[index];
  }

  /** Of a member's step, as counted last, in which `rows` rows of a prompt behind `cachedTokens` are computed too. */
  stepUsWith(index: number, rows: number, cachedTokens: number): number {
    const member = this.#members[index];
    if (member === undefined) return Number.POSITIVE_INFINITY;
    const decodeRows = this.#counted.rows[index];
    const decodeKeys = this.#keys(index, member);
    return member.steps.predictUs({
      rows: decodeRows + rows,
      keyRows: decodeKeys + rows * cachedTokens + (rows * (rows + 1)) / 2,
      decodeRows,
      decodeKeys,
      logitRows: decodeRows + 1,
    });
  }

  /** Tokens of those counted last: their prompts, and one for each step since they joined. */
  #keys(index: number, member: DecodeMember): number {
    const rows = this.#counted.rows[index];
    const prompts = this.#counted.keys[index];
    if (rows === 0) return 0;
    return prompts + this.#counted.decodedUs[index] / member.steps.predictUs(decodeShape(rows, prompts));
  }

  /** Of whoever could decode instead of `index` and would have the shortest step with `tokens` more. */
  leastLoad(index: number, tokens: number): DecodeLoad {
    let least = this.load(index, tokens);
    if (this.#takes[index] === 0) return least;
    for (let i = 0; i < this.#members.length; i++) {
      if (this.#takes[i] === 0) continue;
      const load = this.load(i, tokens);
      if (load.tbtUs < least.tbtUs) least = load;
    }
    return least;
  }

  /** Mean over the members, as counted last by `now` or `at`. */
  get meanTbtUs(): number {
    let sum = 0;
    let members = 0;
    for (let i = 0; i < this.#members.length; i++) {
      if (!this.#isUp(i)) continue;
      sum += this.load(i, 0).tbtUs;
      members++;
    }
    return members === 0 ? 0 : sum / members;
  }

  /**
   * Of those that decode what others prefill, as counted last, in full ones: one is full when its memory is, or when its steps take as long as
   * `tbtUsMax`; the time of a step with next to nothing in it does not count.
   */
  demand(tbtUsMax: number): number {
    let demand = 0;
    for (let i = 0; i < this.#members.length; i++) {
      const member = this.#members[i];
      if (member === undefined || !this.takesHandOffs(i)) continue;
      const { tbtUs, memory } = this.load(i, 0);
      const leastUs = member.steps.predictUs(decodeShape(1, 1));
      demand += Math.max(memory, tbtUs === 0 ? 0 : (tbtUs - leastUs) / Math.max(1, tbtUsMax - leastUs));
    }
    return demand;
  }

  /** Throws unless the counts are those of the requests. */
  check(): void {
    for (let i = 0; i < this.#members.length; i++) {
      let requests = 0;
      let coming = 0;
      for (const { member, tokens, joined } of this.#decoding) {
        if (member !== i) continue;
        requests++;
        if (!joined) coming += tokens;
      }
      if (requests !== this.#requests[i] || coming !== this.#comingTokens[i])
        throw new Error(`Decode pool broken: member ${i} has ${requests} requests, ${this.#requests[i]} are counted`);
    }
  }
}
