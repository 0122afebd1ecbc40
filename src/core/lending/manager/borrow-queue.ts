// Whose turn it is to gather memory that no instance has alone: in the order in which their prompts asked.
import type { InstanceIndex, ReservationNumber } from '../../protocol/ids.ts';

interface QueuedReservation {
  readonly incarnation: number;
  readonly number: ReservationNumber;
}

/**
 * One gathers at a time, so no two hold what the other needs, and the first who asked is the first served. Rebuilt from heartbeats, as the
 * ledger is: only the order among those who waited is lost with its keeper.
 */
export class BorrowQueue {
  readonly #queue = new Map<InstanceIndex, QueuedReservation>();

  get holder(): InstanceIndex | undefined {
    return this.#queue.keys().next().value;
  }

  numberOf(instance: InstanceIndex): ReservationNumber | undefined {
    return this.#queue.get(instance)?.number;
  }

  /** An instance has such a prompt, or (undefined) none: another prompt than before goes to the end of the queue. */
  update(instance: InstanceIndex, incarnation: number, number: ReservationNumber | undefined): void {
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
