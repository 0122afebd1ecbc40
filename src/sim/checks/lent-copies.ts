// No borrowed block that a copy under way reads or writes is returned or reused.

import type { LengthEffect, LengthInstance } from '../../core/instance/length-instance.ts';
import { lentName } from '../../core/lending/debtor/block-moves.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';

/** A block of a creditor, in the debtor's state at the start of the copy. */
interface Borrowed {
  readonly creditor: InstanceIndex;
  /** Its name in moves (`lentName`). */
  readonly at: number;
  /** Undefined: the debtor had no block of that name. */
  readonly held: { readonly loan: number; readonly block: number; readonly rblock: number | undefined } | undefined;
}

type Start = Extract<LengthEffect, { kind: 'moveBlocks' }>;

/** `TransferChecks` follows the blocks that leave home in their page tables. Destinations at home are not followed. */
export class LentCopies {
  /** By debtor and move. */
  readonly #copies = new Map<string, readonly Borrowed[]>();

  start(
    debtor: InstanceIndex,
    instance: LengthInstance,
    name: string,
    { from, to, sources = [], targets }: Start,
  ): void {
    const read = from === debtor ? [] : sources.map((at) => borrowed(instance, from, at));
    const written = to === debtor ? [] : targets.map((at) => borrowed(instance, to, at));
    this.#copies.set(name, [...read, ...written]);
  }

  stop(name: string): void {
    this.#copies.delete(name);
  }

  /** An instance has failed. @param prefix of the names of its copies */
  reset(prefix: string): void {
    for (const name of [...this.#copies.keys()]) if (name.startsWith(prefix)) this.#copies.delete(name);
  }

  /** The first block of the copy that is not in its state at the start; undefined: none, or the copy was stopped. @param incarnation of the debtor, as creditors count it */
  changedBlock(
    name: string,
    debtor: InstanceIndex,
    incarnation: number,
    instances: readonly LengthInstance[],
  ): { readonly creditor: InstanceIndex; readonly at: number } | undefined {
    return this.#copies.get(name)?.find((each) => !isHeld(each, debtor, incarnation, instances));
  }
}

function borrowed({ components }: LengthInstance, creditor: InstanceIndex, at: number): Borrowed {
  for (const debt of components.borrower?.rmanager.debts ?? []) {
    if (debt.creditor !== creditor) continue;
    const { number: loan, memory } = debt;
    for (const blocks of [debt.used, debt.frozen])
      for (const [block, rblock] of blocks)
        if (lentName(memory, block) === at) return { creditor, at, held: { loan, block, rblock } };
  }
  return { creditor, at, held: undefined };
}

/** True if the debtor still holds the block and the creditor lends it. A settlement may have frozen it since. */
function isHeld(
  { creditor, held }: Borrowed,
  debtor: InstanceIndex,
  incarnation: number,
  instances: readonly LengthInstance[],
): boolean {
  if (held === undefined) return false;
  const { loan, block, rblock } = held;
  const debt = instances[debtor].components.borrower?.rmanager.debtor.find(loan);
  if (debt?.frozen.has(block) !== true && (rblock === undefined || debt?.used.get(block) !== rblock)) return false;
  const lent = instances[creditor].components.borrower?.rmanager.creditor.blocksOf(debtor, incarnation, loan);
  return lent?.has(block) === true;
}
