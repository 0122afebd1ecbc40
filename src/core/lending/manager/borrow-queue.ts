// Whose turn it is to gather memory that no instance has alone: in the order in which their prompts asked.
import type { InstanceIndex, TurnNumber } from '../../protocol/ids.ts';

interface Ticket {
  readonly incarnation: number;
  readonly number: TurnNumber;
}

/**
 * One gathers at a time, so no two hold what the other needs, and the first who asked is the first served. Rebuilt from heartbeats, as the
 * ledger is: only the order among those who waited is lost with its keeper.
 */
export class BorrowQueue {
  readonly #queue = new Map<InstanceIndex, Ticket>();

  get holder(): InstanceIndex | undefined {
    return this.#queue.keys().next().value;
  }

  numberOf(instance: InstanceIndex): TurnNumber | undefined {
    return this.#queue.get(instance)?.number;
  }

  /** An instance has such a prompt, or (undefined) none: another prompt than before goes to the end of the queue. */
  hear(instance: InstanceIndex, incarnation: number, number: TurnNumber | undefined): void {
    const known = this.#queue.get(instance);
    if (
      known !== undefined &&
      (incarnation < known.incarnation || (incarnation === known.incarnation && number === known.number))
    )
      return;
    this.#queue.delete(instance);
    if (number !== undefined) this.#queue.set(instance, { incarnation, number });
  }

  forget(instances: readonly InstanceIndex[]): void {
    for (const instance of instances) this.#queue.delete(instance);
  }
}
