// Runs sequences on an engine in a given order of steps, and keeps the bits of every row of logits.
import type { Engine } from '../../src/engine/engine.ts';
import { groupedStep, type PlainPages, type PlainSequence, plainPages } from '../../src/engine/plain-step.ts';
import { pageTokens } from '../../src/util/step.ts';

export class Player {
  readonly #engine: Engine;
  readonly #pages: readonly PlainPages[];
  readonly blocks: number;

  constructor(engine: Engine) {
    this.#engine = engine;
    const { groups } = engine.model.kv;
    this.blocks = Math.floor(engine.pages / groups.reduce((sum, { layers }) => sum + layers, 0));
    this.#pages = plainPages(this.blocks, groups);
  }

  /** Logit bits of each row with logits, in order, and the failed rows. */
  step(sequences: readonly PlainSequence[]): {
    readonly rows: Uint32Array[];
    readonly failed: Uint8Array;
    readonly tokens: Int32Array;
  } {
    const outcome = this.#engine.run(groupedStep(sequences, this.#pages), new Int32Array(1));
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    const { failed, tokens } = outcome.result;
    return { rows: bitRows(this.#engine.readLogits(tokens.length), tokens.length), failed, tokens };
  }

  /** Fills every page of a block, or only those of window groups, with stale bytes of an earlier owner. */
  spoil(block: number, value: number, which: 'all' | 'windows' = 'all'): void {
    for (const { pageTable, layers, window } of this.#pages) {
      if (which === 'windows' && window === undefined) continue;
      for (const page of pageTable.subarray(block * layers, (block + 1) * layers)) {
        this.#engine.writePage(page, this.#engine.readPage(page).fill(value));
      }
    }
  }
}

export function bitRows(logits: Float32Array, rows: number): Uint32Array[] {
  const columns = rows === 0 ? 0 : logits.length / rows;
  const bits = new Uint32Array(logits.buffer, logits.byteOffset, logits.length);
  return Array.from({ length: rows }, (_, row) => bits.slice(row * columns, (row + 1) * columns));
}

export function sameBits(a: readonly Uint32Array[], b: readonly Uint32Array[]): boolean {
  return (
    a.length === b.length && a.every((row, i) => row.length === b[i].length && row.every((bits, j) => bits === b[i][j]))
  );
}

/** Deterministic token ids: a fixed walk through the vocabulary. */
export function someTokens(count: number, vocabulary: number, seed: number): number[] {
  return Array.from({ length: count }, (_, i) => ((i + 1) * (2 * seed + 7919) + seed) % vocabulary);
}

/** Block ids from `first` on for a number of tokens. */
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
