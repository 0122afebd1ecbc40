// A request of a simulated cluster: lengths and block digests in place of tokens.

import { digestWords } from '../../../util/blake2s.ts';
import { placeAt } from '../../../util/digest-table.ts';
import type { RequestLengths } from '../../../util/request-lengths.ts';
import { scramble, scrambleGroup } from '../../../util/scramble.ts';
import { wideZero } from '../../../util/wide-zero.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { RequestSize } from '../../protocol/request-size.ts';
import type { Prediction } from '../../protocol/request-trace.ts';
import type { Slo } from '../../protocol/slo.ts';
import type { StepRun } from './executor.ts';
import type { Float64Pool } from './float64-pool.ts';

const noGaps = new Float64Array(0);

/** A request and the times of its tokens. */
export class LengthRequest {
  readonly id: RequestId;
  readonly trace: RequestLengths;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly chain: BlockChain;
  firstTokenUs: number | undefined;
  lastTokenUs: number = wideZero;
  cachedTokens = 0;
  /** Its prefill began. */
  startedUs: number | undefined;
  preemptions = 0;
  outputs = 0;
  /** Undefined: no objective. */
  slo: Slo | undefined;
  /** Prediction of the conductor at admission. */
  predicted: Prediction | undefined;
  /** Gaps between tokens: the first `outputs - 1` entries. */
  gapUs: Float64Array = noGaps;
  readonly #pool: Float64Pool;

  /** An instance has reported its first token. */
  reported = false;
  /** Output tokens of earlier attempts. */
  resumed = 0;
  readonly #blockTokens: number;

  /** @param pool provides the array of gaps with the first token; `release` returns it */
  constructor(trace: RequestLengths, blockTokens: number, pool: Float64Pool, id: RequestId = String(trace.index)) {
    this.id = id;
    this.#blockTokens = blockTokens;
    this.trace = trace;
    this.inputTokens = trace.inputTokens;
    this.outputTokens = trace.outputTokens;
    this.chain = traceChain(trace, blockTokens);
    this.#pool = pool;
  }

  /** Records the tokens of a run: one for each step. */
  grow({ startedUs, stepUs }: StepRun): void {
    const { outputs } = this;
    if (outputs === 0 && this.outputTokens > 1) this.gapUs = this.#pool.take(this.outputTokens - 1);
    const { gapUs } = this;
    const steps = stepUs.length;
    let atUs = startedUs + stepUs[0];
    if (outputs === 0) this.firstTokenUs = atUs;
    else gapUs[outputs - 1] = atUs - this.lastTokenUs;
    for (let i = 1; i < steps; i++) {
      const us = stepUs[i];
      gapUs[outputs - 1 + i] = us;
      atUs += us;
    }
    this.lastTokenUs = atUs;
    this.outputs = outputs + steps;
  }

  /** Returns the array of gaps to the pool. */
  release(): void {
    if (this.gapUs !== noGaps) this.#pool.release(this.gapUs);
    this.gapUs = noGaps;
  }

  /** The newest token, which another instance computed, is delivered at `atUs`. */
  deliveredAt(atUs: number): void {
    if (this.outputs === 1) this.firstTokenUs = atUs;
    else this.gapUs[this.outputs - 2] += atUs - this.lastTokenUs;
    this.lastTokenUs = atUs;
  }

  /** The chain of a sequence that computes the request. */
  growingChain(): GrowingChain {
    return new GrowingChain(this.chain, this.trace.outputBlocks ?? noBlocks, this.#blockTokens);
  }

  get size(): RequestSize {
    const { inputTokens, outputTokens, resumed } = this;
    const lengths = { promptTokens: inputTokens + resumed, outputTokensMax: outputTokens - resumed };
    const size = this.trace.kvBudget === undefined ? lengths : { ...lengths, kvBudget: this.trace.kvBudget };
    return resumed === 0 ? size : { ...size, resumedTokens: resumed };
  }

  /** The same request after its first `outputs` tokens, for another attempt. This one may still grow unobserved. */
  resume(id: RequestId, outputs: number): LengthRequest {
    const next = new LengthRequest(this.trace, this.#blockTokens, this.#pool, id);
    next.slo = this.slo;
    next.predicted = this.predicted;
    next.startedUs = this.startedUs;
    next.preemptions = this.preemptions;
    if (outputs === 0) return next;
    next.resumed = outputs;
    next.outputs = outputs;
    next.cachedTokens = this.cachedTokens;
    next.firstTokenUs = this.firstTokenUs;
    next.lastTokenUs = this.firstTokenUs ?? 0;
    next.gapUs = this.#pool.take(this.outputTokens - 1);
    for (let i = 0; i < outputs - 1; i++) {
      next.gapUs[i] = this.gapUs[i];
      next.lastTokenUs += this.gapUs[i];
    }
    return next;
  }
}

/** Digests of the prompt's full blocks: the ids of the trace, scrambled for hash tables. */
function traceChain({ blocks, inputTokens }: RequestLengths, blockTokens: number): BlockChain {
  const full = Math.min(blocks.length, Math.floor(inputTokens / blockTokens));
  const words = new Uint32Array(full * digestWords);
  setDigests(words, blocks, full, 0);
  return { blocks: full, words };
}

/** Sets the digests from `from` on: the scrambled id of a block is unique, and places blocks of a prompt side by side. */
function setDigests(words: Uint32Array, ids: ArrayLike<number>, count: number, from: number): void {
  for (let i = 0; i < count; i++) {
    const at = (from + i) * digestWords;
    words[at] = scramble(ids[i]);
    words[at + placeAt] = scrambleGroup(ids[i]);
  }
}

const noBlocks = new Int32Array(0);

/** The blocks of a prompt, then the full blocks of its output that have digests. */
export class GrowingChain implements BlockChain {
  blocks: number;
  readonly words: Uint32Array;
  readonly #blocksMax: number;
  readonly #blockTokens: number;

  constructor({ blocks, words }: BlockChain, outputs: Int32Array, blockTokens: number) {
    this.blocks = blocks;
    this.#blocksMax = blocks + outputs.length;
    this.#blockTokens = blockTokens;
    this.words = new Uint32Array(this.#blocksMax * digestWords);
    this.words.set(words);
    setDigests(this.words, outputs, outputs.length, blocks);
  }

  grow(length: number): void {
    this.blocks = Math.max(this.blocks, Math.min(this.#blocksMax, Math.floor(length / this.#blockTokens)));
  }
}
