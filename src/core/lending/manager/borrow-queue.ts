// The order in which instances reserve memory that no instance has alone: first come, first served.
import type { InstanceIndex, ReservationNumber } from '../../protocol/ids.ts';

interface QueuedReservation {
  readonly incarnation: number;
  readonly number: ReservationNumber;
}

/**
 * One instance reserves at a time, so no two hold what the other needs. Rebuilt from heartbeats like the ledger: only
 * the order of the waiting
 * instances is lost with the gManager.
 */
export class BorrowQueue {
  readonly #queue = new Map<InstanceIndex, QueuedReservation>();

  get holder(): InstanceIndex | undefined {
    return this.#queue.keys().next().value;
  }

  numberOf(instance: InstanceIndex): ReservationNumber | undefined {
    return this.#queue.get(instance)?.number;
  }

  /**
   * Records the waiting prompt of an instance, or none (undefined). A different prompt goes to the end of the queue.
   */
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
