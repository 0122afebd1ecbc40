// Plays sequences on an engine in a chosen order of steps, and keeps the bits of every row of logits.
import type { Engine } from '../../src/engine/engine.ts';
import { type PlainSequence, plainPageTable, plainStep } from '../../src/engine/plain-step.ts';
import { pageTokens } from '../../src/util/step.ts';

export class Player {
  readonly #engine: Engine;
  readonly #pageTable: Int32Array;
  readonly #layers: number;
  readonly blocks: number;

  constructor(engine: Engine) {
    this.#engine = engine;
    this.#layers = engine.model.kv.groupLayers[0];
    this.blocks = Math.floor(engine.pages / this.#layers);
    this.#pageTable = plainPageTable(this.blocks, this.#layers);
  }

  /** Logit bits of each row that asked for them, in order, and which rows failed. */
  step(sequences: readonly PlainSequence[]): {
    readonly rows: Uint32Array[];
    readonly failed: Uint8Array;
    readonly tokens: Int32Array;
  } {
    const outcome = this.#engine.run(plainStep(sequences, this.#pageTable, this.#layers), new Int32Array(1));
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    const { failed, tokens } = outcome.result;
    return { rows: bitRows(this.#engine.readLogits(tokens.length), tokens.length), failed, tokens };
  }

  /** Fills every page of a block: stale bytes, as an earlier owner would leave them. */
  spoil(block: number, value: number): void {
    for (let layer = 0; layer < this.#layers; layer++) {
      const page = this.#pageTable[block * this.#layers + layer];
      this.#engine.writePage(page, this.#engine.readPage(page).fill(value));
    }
  }
}

export function bitRows(logits: Float32Array, rows: number): Uint32Array[] {
  const columns = rows === 0 ? 0 : logits.length / rows;
  const bits = new Uint32Array(logits.buffer, logits.byteOffset, logits.length);
  return Array.from({ length: rows }, (_, row) => bits.slice(row * columns, (row + 1) * columns));
}

/** Token ids that no one chose: a fixed walk through the vocabulary. */
export function someTokens(count: number, vocabulary: number, seed: number): number[] {
  return Array.from({ length: count }, (_, i) => ((i + 1) * (2 * seed + 7919) + seed) % vocabulary);
}

/** Blocks for a number of tokens, from `first` on. */
export function blocksFor(tokens: number, first: number): number[] {
  return Array.from({ length: Math.ceil(tokens / pageTokens) }, (_, i) => first + i);
}

/** Cuts tokens from position `from` on into chunks; the last size repeats. */
export function chunksOf(
  tokens: readonly number[],
  from: number,
  sizes: readonly number[],
): { readonly start: number; readonly tokens: number[] }[] {
  const chunks: { start: number; tokens: number[] }[] = [];
  for (let start = from; start < tokens.length; ) {
    const size = sizes[Math.min(chunks.length, sizes.length - 1)];
    chunks.push({ start, tokens: tokens.slice(start, start + size) });
    start += size;
  }
  return chunks;
}
