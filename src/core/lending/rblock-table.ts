// The rBlocks of an instance and their places: at home, at a creditor, or in the staging buffer.
import type { BlockId, InstanceIndex, RBlockId } from '../protocol/ids.ts';
import type { Memory } from '../protocol/lending-report.ts';

export type RBlockPlace =
  | { readonly kind: 'home'; readonly memory: Memory; readonly block: BlockId }
  | {
      readonly kind: 'remote';
      readonly instance: InstanceIndex;
      readonly memory: Memory;
      readonly block: BlockId;
      /** The loan that the block belongs to. */
      readonly loan: number;
    }
  /** The contents are in the staging buffer until memory at home is free. */
  | { readonly kind: 'staged'; readonly memory: Memory };

export class RBlockTable {
  readonly #places = new Map<RBlockId, RBlockPlace>();
  #next: RBlockId = 1;

  get size(): number {
    return this.#places.size;
  }

  add(place: RBlockPlace): RBlockId {
    const id = this.#next++;
    this.#places.set(id, place);
    return id;
  }

  /** Undefined if the rBlock does not exist or was lost with its creditor. */
  find(id: RBlockId): RBlockPlace | undefined {
    return this.#places.get(id);
  }

  move(id: RBlockId, place: RBlockPlace): void {
    if (!this.#places.has(id)) throw new Error(`Cannot move an rBlock: there is none with this number: rBlock ${id}`);
    this.#places.set(id, place);
  }

  remove(id: RBlockId): void {
    if (!this.#places.delete(id))
      throw new Error(`Cannot remove an rBlock: there is none with this number: rBlock ${id}`);
  }

  entries(): IterableIterator<[RBlockId, RBlockPlace]> {
    return this.#places.entries();
  }
}
