// The order in which instances reserve memory for prompts that exceed every instance: first come, first served.
import type { InstanceIndex, ReservationNumber } from '../../protocol/ids.ts';

interface QueuedReservation {
  readonly incarnation: number;
  readonly number: ReservationNumber;
}

/**
 * One instance reserves at a time, so that no two hold memory that the other waits for. Rebuilt from heartbeats like the
 * ledger: with the gManager only the order of the waiting instances is lost.
 */
export class BorrowQueue {
  readonly #queue = new Map<InstanceIndex, QueuedReservation>();

  get holder(): InstanceIndex | undefined {
    return this.#queue.keys().next().value;
  }

  numberOf(instance: InstanceIndex): ReservationNumber | undefined {
    return this.#queue.get(instance)?.number;
  }

  /** Records the waiting prompt of an instance; undefined: none. Another prompt than before goes to the end. */
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
