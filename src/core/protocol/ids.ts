// Identifiers of requests, instances, steps, blocks and loans, as branded types: an identifier of one kind is not
// assignable to another kind. Plain numbers and strings are assignable to all of them.

declare const brand: unique symbol;

/** A `T` that is not assignable to identifiers of another kind. Plain values of type `T` need no cast. */
type Branded<T, Name extends string> = T & { readonly [brand]?: Name };

/** Unique in its process; every log line and error about the request contains it. */
export type RequestId = Branded<string, 'RequestId'>;

/** Position of an instance in the cluster's list of instances. */
export type InstanceIndex = Branded<number, 'InstanceIndex'>;

/** Counts the steps of one instance; the instance that plans a step numbers it. */
export type StepNumber = Branded<number, 'StepNumber'>;

/** Position of a block in its block pool, which is its row in the page table. */
export type BlockId = Branded<number, 'BlockId'>;

/** A row of the page table as a step lists it: blocks of the pool first, then rows for blocks outside block tables. */
export type PageRow = Branded<number, 'PageRow'>;

/** Position of a block in its tier, host memory or SSD: 0 to capacity - 1. */
export type SlotId = Branded<number, 'SlotId'>;

/** Identity of an rBlock within its sequence: it stays the same when the block moves (Infinite-LLM, section 5). */
export type RBlockId = Branded<number, 'RBlockId'>;

/** Name of a pinned prefix, chosen by the client that pins it. */
export type PinId = Branded<string, 'PinId'>;

/** Counts the transfers of blocks between one pair of instances; the instance that owns the blocks numbers them. */
export type MoveNumber = Branded<number, 'MoveNumber'>;

/** Counts the loans of one debtor over all of its creditors. */
export type LoanNumber = Branded<number, 'LoanNumber'>;

/** Counts the requests of one instance that reserve memory beyond their own instance. */
export type ReservationNumber = Branded<number, 'ReservationNumber'>;

/** Identity of one settlement: the gManager numbers them within its epoch. */
export interface SettlementId {
  readonly epoch: number;
  readonly number: number;
}
