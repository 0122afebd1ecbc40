// The decode pool: requests that decode on each instance or are on their way to it, and the load that they predict.

import { withServedAttentionUs } from '../../cost/dist-attention.ts';
import { decodeShape, type StepPredictor, type StepShape } from '../../protocol/step-shape.ts';
import type { LengthDistribution } from './output-lengths.ts';

/** An instance of the pool. */
export interface DecodeMember {
  /** Steps without attention for debtors. */
  readonly steps: Pick<StepPredictor, 'predictUs'>;
  /** KV tokens that fit into memory at once. */
  readonly capacityTokens: number;
  /** Prompt tokens that the receive buffers hold at once. */
  readonly receiveTokens: number;
  /** False: the instance decodes only prompts that it has prefilled itself. */
  readonly takesHandOffs: boolean;
}

/** A request on its way to the instance that decodes it. */
export interface DecodeArrival {
  /** Index of the instance. */
  readonly member: number;
  /** Of the prompt. */
  readonly tokens: number;
  /** Predicted start of its decode. */
  readonly decodeStartUs: number;
  /** Its TBT bound; Infinity: none. */
  readonly tbtUsMax: number;
  /** A request of larger priority takes its memory when memory is short; 0 unless given. */
  readonly priority?: number | undefined;
  /** Output lengths of similar requests. */
  readonly outputs?: LengthDistribution | undefined;
}

/** A request that decodes, or will decode. */
export interface DecodingRequest extends DecodeArrival {
  readonly addedUs: number;
  member: number;
  /** Start of its decode: predicted until it has started. */
  decodeStartUs: number;
  hasStarted: boolean;
}

export interface DecodeLoad {
  /** Predicted duration of a step. */
  readonly tbtUs: number;
  /** Strictest TBT bound of the requests of at least the counted priority. */
  readonly tbtUsMax: number;
  /** KV memory of these requests, over capacity. */
  readonly memory: number;
}

/** The load of an empty batch. */
export const idleDecode: DecodeLoad = { tbtUs: 0, tbtUsMax: Number.POSITIVE_INFINITY, memory: 0 };
/** The load of an instance that is down or does not decode. */
const unavailable: DecodeLoad = { ...idleDecode, tbtUs: Number.POSITIVE_INFINITY, memory: 1 };

/** The share of a request that counts. @param fromUs observed or predicted start of its decode */
type Share = (decoding: DecodingRequest, fromUs: number) => number;

/**
 * A request counts with its prompt and with one output token for each predicted step since its decode started. `countNow`, `countAt` and
 * `countExpected` select the requests that `load` and the methods after it use.
 */
export class DecodePool {
  readonly #members: readonly (DecodeMember | undefined)[];
  readonly #decoding = new Set<DecodingRequest>();
  /** (members): requests that decode or are on their way, and their tokens. */
  readonly #requests: Int32Array;
  readonly #tokens: Float64Array;
  /** (members): requests that other conductors placed, and their tokens. */
  readonly #othersRows: Float64Array;
  readonly #othersTokens: Float64Array;
  /** (members): share of steps that attention for debtors takes, in thousandths. */
  readonly #servedPermille: Uint16Array;
  /** (members): tokens on their way. */
  readonly #arrivingTokens: Float64Array;
  /** (members): 1 for instances that are up, that decode, and that take hand-offs. */
  readonly #up: Uint8Array;
  readonly #decodes: Uint8Array;
  readonly #takesHandOffs: Uint8Array;
  /**
   * (members): the last count: sequences, prompt tokens, and sum of the times since their decodes started; the last two once more, and the
   * strictest TBT bound, over the requests that a request of the counted priority does not outrank.
   */
  readonly #counted: {
    readonly rows: Float64Array;
    readonly keys: Float64Array;
    readonly decodedUs: Float64Array;
    readonly heldKeys: Float64Array;
    readonly heldUs: Float64Array;
    readonly tbtUsMax: Float64Array;
  };

  /** @param members (instances): undefined for instances that never decode */
  constructor(members: readonly (DecodeMember | undefined)[]) {
    this.#members = members;
    this.#requests = new Int32Array(members.length);
    this.#tokens = new Float64Array(members.length);
    this.#arrivingTokens = new Float64Array(members.length);
    this.#othersRows = new Float64Array(members.length);
    this.#othersTokens = new Float64Array(members.length);
    this.#servedPermille = new Uint16Array(members.length);
    this.#counted = {
      rows: new Float64Array(members.length),
      keys: new Float64Array(members.length),
      decodedUs: new Float64Array(members.length),
      heldKeys: new Float64Array(members.length),
      heldUs: new Float64Array(members.length),
      tbtUsMax: new Float64Array(members.length),
    };
    this.#up = new Uint8Array(members.length).fill(1);
    this.#decodes = Uint8Array.from(members, (member) => Number(member !== undefined));
    this.#takesHandOffs = Uint8Array.from(members, (member) => Number(member?.takesHandOffs === true));
  }

  /**
   * The member with the shortest step after one more prompt of `tokens` tokens, over all requests that decode or are on their way. Members
   * with full receive buffers come last. Undefined when no member is up.
   * @param eligible (members): 1 for candidates; undefined: all
   */
  choose(tokens: number, eligible?: Uint8Array): number | undefined {
    const stepUs = (i: number, member: DecodeMember): number => {
      const rows = this.#requests[i] + this.#othersRows[i] + 1;
      return this.#stepUs(i, member, decodeShape(rows, this.#tokens[i] + this.#othersTokens[i] + tokens));
    };
    return this.#shortest(tokens, stepUs, eligible);
  }

  /** As `choose`, over the requests of the last count. */
  chooseCounted(tokens: number, eligible?: Uint8Array): number | undefined {
    return this.#shortest(tokens, (i) => this.load(i, tokens).tbtUs, eligible);
  }

  #shortest(
    tokens: number,
    stepUs: (index: number, member: DecodeMember) => number,
    eligible: Uint8Array | undefined,
  ): number | undefined {
    let best: number | undefined;
    let bestUs = Number.POSITIVE_INFINITY;
    for (let pass = 0; pass < 2 && best === undefined; pass++) {
      for (let i = 0; i < this.#members.length; i++) {
        const member = this.#members[i];
        if (member === undefined || !this.takesHandOffs(i) || eligible?.[i] === 0) continue;
        if (pass === 0 && this.#arrivingTokens[i] + tokens > member.receiveTokens) continue;
        const us = stepUs(i, member);
        if (us >= bestUs) continue;
        best = i;
        bestUs = us;
      }
    }
    return best;
  }

  add(nowUs: number, arrival: DecodeArrival): DecodingRequest {
    const decoding = { ...arrival, addedUs: nowUs, hasStarted: false };
    this.#decoding.add(decoding);
    this.#adjust(decoding, 1);
    return decoding;
  }

  /** The decode of the request has started. */
  decodeStarted(nowUs: number, decoding: DecodingRequest): void {
    if (decoding.hasStarted || !this.#decoding.has(decoding)) return;
    decoding.hasStarted = true;
    decoding.decodeStartUs = nowUs;
    this.#arrivingTokens[decoding.member] -= decoding.tokens;
  }

  /** The request has ended, or will not arrive. */
  remove(decoding: DecodingRequest): void {
    if (!this.#decoding.delete(decoding)) return;
    this.#adjust(decoding, -1);
  }

  #adjust({ member, tokens, hasStarted }: DecodingRequest, requests: 1 | -1): void {
    this.#requests[member] = this.#requests[member] + requests;
    this.#tokens[member] = this.#tokens[member] + requests * tokens;
    if (!hasStarted) this.#arrivingTokens[member] = this.#arrivingTokens[member] + requests * tokens;
  }

  /** The request migrates to another member. */
  move(decoding: DecodingRequest, member: number): void {
    if (!this.#decoding.has(decoding)) return;
    this.#adjust(decoding, -1);
    decoding.member = member;
    this.#adjust(decoding, 1);
  }

  /** Requests of other conductors count at every time, and in the memory of every priority. */
  setOthers(member: number, rows: number, tokens: number): void {
    this.#othersRows[member] = rows;
    this.#othersTokens[member] = tokens;
  }

  setServedAttention(member: number, permille: number): void {
    this.#servedPermille[member] = permille;
  }

  #stepUs(index: number, { steps }: DecodeMember, shape: StepShape): number {
    return withServedAttentionUs(steps.predictUs(shape), this.#servedPermille[index]);
  }

  instanceFailed(member: number): void {
    this.#up[member] = 0;
  }

  instanceJoined(member: number): void {
    this.#up[member] = 1;
  }

  /** Sets which new requests the member decodes: hand-offs, only its own prefills, or none. The requests that it has end there. */
  setRole(member: number, decodes: 'others' | 'own' | 'none'): void {
    if (this.#members[member] === undefined) return;
    this.#decodes[member] = Number(decodes !== 'none');
    this.#takesHandOffs[member] = Number(decodes === 'others');
  }

  #isUp(index: number): boolean {
    return this.#up[index] === 1 && this.#decodes[index] === 1;
  }

  /** Counts the requests whose decode has started. @param priority of the request that is judged; undefined: it outranks none */
  countNow(nowUs: number, priority = Number.NEGATIVE_INFINITY): this {
    return this.#count(nowUs, nowUs, priority, ({ hasStarted }) => Number(hasStarted));
  }

  /** Counts the requests that decode at `atUs` if every decode lasts `decodeUs` (Mooncake, section 6.2: system level). */
  countAt(nowUs: number, atUs: number, decodeUs: number, priority = Number.NEGATIVE_INFINITY): this {
    return this.#count(nowUs, atUs, priority, (_, fromUs) => Number(fromUs <= atUs && fromUs > atUs - decodeUs));
  }

  /** Counts the requests of this conductor alone that decode, or whose decode should have started. */
  countOwn(nowUs: number): this {
    return this.#count(nowUs, nowUs, Number.NEGATIVE_INFINITY, (_, fromUs) => Number(fromUs <= nowUs), false);
  }

  /**
   * Counts each request with the probability that it still decodes at `atUs`, by the output lengths of similar requests (Mooncake, section
   * 6.2: request level).
   */
  countExpected(nowUs: number, atUs: number, priority = Number.NEGATIVE_INFINITY): this {
    this.countNow(nowUs);
    const stepUs = this.#members.map((_, i) => Math.max(1, this.load(i, 0).tbtUs));
    return this.#count(nowUs, atUs, priority, ({ member, hasStarted, outputs }, fromUs) => {
      if (fromUs > atUs) return 0;
      if (outputs === undefined) return 1;
      const now = hasStarted ? outputs.longer((nowUs - fromUs) / stepUs[member]) : 1;
      // An output longer than all known ones has no known distribution.
      return now === 0 ? 1 : outputs.longer((atUs - fromUs) / stepUs[member]) / now;
    });
  }

  /** @param others requests of other conductors count too */
  #count(nowUs: number, atUs: number, priority: number, share: Share, others = true): this {
    const { rows, keys, decodedUs, heldKeys, heldUs, tbtUsMax } = this.#counted;
    for (const each of [rows, keys, heldKeys, decodedUs, heldUs]) each.fill(0);
    if (others) {
      rows.set(this.#othersRows);
      keys.set(this.#othersTokens);
      heldKeys.set(this.#othersTokens);
    }
    tbtUsMax.fill(Number.POSITIVE_INFINITY);
    for (const decoding of this.#decoding) {
      const { member, hasStarted, decodeStartUs } = decoding;
      // The decode of a late request starts now at the earliest.
      const fromUs = hasStarted ? decodeStartUs : Math.max(decodeStartUs, nowUs);
      const part = share(decoding, fromUs);
      if (part === 0) continue;
      rows[member] += part;
      keys[member] += part * decoding.tokens;
      if (hasStarted) decodedUs[member] += part * (atUs - decodeStartUs);
      if ((decoding.priority ?? 0) < priority) continue;
      heldKeys[member] += part * decoding.tokens;
      if (hasStarted) heldUs[member] += part * (atUs - decodeStartUs);
      if (decoding.tbtUsMax < tbtUsMax[member]) tbtUsMax[member] = decoding.tbtUsMax;
    }
    return this;
  }

  /** Load of a member with one more prompt of `tokens` tokens (0: none). */
  load(index: number, tokens: number): DecodeLoad {
    const member = this.#members[index];
    if (member === undefined || !this.#isUp(index)) return unavailable;
    const rows = this.#counted.rows[index] + (tokens > 0 ? 1 : 0);
    if (rows === 0) return idleDecode;
    const prompts = this.#counted.keys[index] + tokens;
    const stepUs = this.#stepUs(index, member, decodeShape(rows, prompts));
    const keys = prompts + this.#counted.decodedUs[index] / stepUs;
    const held = this.#counted.heldKeys[index] + tokens + this.#counted.heldUs[index] / stepUs;
    return {
      tbtUs: this.#stepUs(index, member, decodeShape(rows, keys)),
      tbtUsMax: this.#counted.tbtUsMax[index],
      memory: held / member.capacityTokens,
    };
  }

  /** True when the member is up and decodes what other instances prefill. */
  takesHandOffs(index: number): boolean {
    return this.#takesHandOffs[index] === 1 && this.#up[index] === 1;
  }

  /** Strictest TBT bound on a member. */
  strictestTbtUs(index: number): number {
    return this.#counted.tbtUsMax[index];
  }

  /** Duration of a step that also computes `rows` rows of a prompt behind `cachedTokens` tokens. */
  stepUsWith(index: number, rows: number, cachedTokens: number): number {
    const member = this.#members[index];
    if (member === undefined) return Number.POSITIVE_INFINITY;
    const decodeRows = this.#counted.rows[index];
    const decodeKeys = this.#keys(index, member);
    return this.#stepUs(index, member, {
      rows: decodeRows + rows,
      keyRows: decodeKeys + rows * cachedTokens + (rows * (rows + 1)) / 2,
      decodeRows,
      decodeKeys,
      logitRows: decodeRows + 1,
    });
  }

  /** Tokens on a member: prompts, and one for each step since the decodes started. */
  #keys(index: number, member: DecodeMember): number {
    const rows = this.#counted.rows[index];
    const prompts = this.#counted.keys[index];
    if (rows === 0) return 0;
    return prompts + this.#counted.decodedUs[index] / this.#stepUs(index, member, decodeShape(rows, prompts));
  }

  /** The load with `tokens` more tokens of the member, or of the member with the shortest step that could decode in its place. */
  leastLoad(index: number, tokens: number): DecodeLoad {
    let least = this.load(index, tokens);
    if (this.#takesHandOffs[index] === 0) return least;
    for (let i = 0; i < this.#members.length; i++) {
      if (this.#takesHandOffs[i] === 0) continue;
      const load = this.load(i, tokens);
      if (load.tbtUs < least.tbtUs) least = load;
    }
    return least;
  }

  /** Mean over the members that are up. */
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
   * Decode work of the members that take hand-offs, in full members: a member is full when its memory is, or when its step takes
   * `tbtUsMax`. The time of an almost empty step does not count.
   */
  demand(tbtUsMax: number): number {
    let demand = 0;
    for (let i = 0; i < this.#members.length; i++) {
      const member = this.#members[i];
      if (member === undefined || !this.takesHandOffs(i)) continue;
      const { tbtUs, memory } = this.load(i, 0);
      const leastUs = this.leastStepUs(i);
      demand += Math.max(memory, tbtUs === 0 ? 0 : (tbtUs - leastUs) / Math.max(1, tbtUsMax - leastUs));
    }
    return demand;
  }

  /** Step of one row, which is almost all fixed cost. */
  leastStepUs(index: number): number {
    const member = this.#members[index];
    return member === undefined ? 0 : this.#stepUs(index, member, decodeShape(1, 1));
  }

  /** Throws unless the sums are those of the requests. */
  check(): void {
    for (let i = 0; i < this.#members.length; i++) {
      let requests = 0;
      let arriving = 0;
      for (const { member, tokens, hasStarted } of this.#decoding) {
        if (member !== i) continue;
        requests++;
        if (!hasStarted) arriving += tokens;
      }
      if (requests !== this.#requests[i] || arriving !== this.#arrivingTokens[i])
        throw new Error(`Decode pool broken: member ${i} has ${requests} requests, ${this.#requests[i]} are counted`);
    }
  }
}
