// Prefill time of a prompt on an idle instance.
import type { StepPredictor } from '../protocol/step-shape.ts';

export interface PrefillPredictor {
  /** Time of a prompt of `tokens` tokens; the first `cachedTokens` have keys and values already. */
  prefillUs(tokens: number, cachedTokens: number): number;
}

/**
 * Steps of at most `chunkTokens` rows. Their times are almost linear in rows and keys, so one mean step gives the time
 * of all.
 */
export class ChunkedPrefill implements PrefillPredictor {
  readonly #steps: Pick<StepPredictor, 'predictUs'>;
  readonly #chunkTokens: number;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 1 };

  constructor(steps: Pick<StepPredictor, 'predictUs'>, chunkTokens: number) {
    this.#steps = steps;
    this.#chunkTokens = chunkTokens;
  }

  prefillUs(tokens: number, cachedTokens: number): number {
    const rows = Math.max(1, tokens - cachedTokens);
    const chunks = Math.ceil(rows / this.#chunkTokens);
    const shape = this.#shape;
    shape.rows = rows / chunks;
    // Keys of the mean chunk: (rows (cached + 1) + rows (rows - 1) / 2) / chunks.
    shape.keyRows = (rows * (tokens - rows + 1) + (rows * (rows - 1)) / 2) / chunks;
    return chunks * this.#steps.predictUs(shape);
  }
}
