// The keys and values at the attention workers of an instance: no step attends to tokens that a lost worker held.

import type { Sequence } from '../../core/scheduler/batching/sequence.ts';
import type { RunningLengths } from '../../core/scheduler/executor/length-executor.ts';
import type { SlotTable } from '../../util/step.ts';

/** Rows of a step in flight: tokens from `from` on of a sequence with these blocks. */
interface Rows {
  readonly from: number;
  readonly planned: number;
  readonly blocks: readonly number[];
  /** Slots that the rows fill; undefined: none yet, or all tokens are kept. */
  readonly slots: SlotTable | undefined;
}

export class WorkerContents {
  readonly #blockTokens: number;
  /** By block: leading tokens with keys and values at every attention worker. */
  readonly #written = new Map<number, number>();
  /** Slots with contents at every attention worker. */
  readonly #filled = new Set<SlotTable>();
  #rows: readonly Rows[] = [];

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  /** A worker is lost: no block is whole. */
  clear(): void {
    this.#written.clear();
    this.#filled.clear();
    this.#rows = [];
  }

  /** A step over these requests begins. @throws Error if a row attends to a token without keys and values */
  stepStarted(requests: readonly RunningLengths[]): void {
    this.#rows = requests.map(({ id, sequence }) => {
      const { computed, planned, table } = sequence;
      const blocks = blocksOf(sequence);
      const slots = sequence.isSelected ? table.slots : undefined;
      // The KV of a received prompt arrived at the workers; no step has computed anything behind it.
      if (sequence.receivedTokens === computed) {
        this.#write(blocks, 0, computed);
        if (slots !== undefined) this.#filled.add(slots);
      }
      if (slots !== undefined && !this.#filled.has(slots))
        throw new Error(`Attention workers broken: request ${id} attends to kept tokens that no worker has`);
      const selects = computed + planned >= sequence.promptLength;
      if (blocks.length === 0) return { from: computed, planned, blocks, slots };
      for (let at = 0; at < computed; at += this.#blockTokens) {
        const required = Math.min(this.#blockTokens, computed - at);
        const written = this.#writtenOf(blocks[at / this.#blockTokens]);
        if (written < required)
          throw new Error(
            `Attention workers broken: request ${id} attends to tokens ${at} to ${at + required}, of which workers have ${written}`,
          );
      }
      return { from: computed, planned, blocks, slots: selects ? table.slots : undefined };
    });
  }

  /** The results of the step, or of so many equal steps, count. */
  stepEnded(steps: number): void {
    for (const { from, planned, blocks, slots } of this.#rows) {
      if (slots !== undefined) this.#filled.add(slots);
      // In a run of steps every row decodes.
      this.#write(blocks, from, from + (steps > 1 ? steps : planned));
    }
    this.#rows = [];
  }

  #write(blocks: readonly number[], from: number, to: number): void {
    if (blocks.length === 0) return;
    for (let at = from; at < to; at++)
      this.#written.set(blocks[Math.floor(at / this.#blockTokens)], (at % this.#blockTokens) + 1);
  }

  #writtenOf(block: number): number {
    return this.#written.get(block) ?? 0;
  }
}

/** The blocks of a layer group in which the sequence has all tokens; none if there is no such group. */
function blocksOf({ table, isSelected }: Sequence): number[] {
  const [{ blocks, inSlots }] = table.groups;
  return isSelected && inSlots ? [] : Array.from({ length: blocks.length }, (_, i) => blocks.at(i));
}
