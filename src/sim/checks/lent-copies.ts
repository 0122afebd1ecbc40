// No borrowed block that a copy under way reads or writes is given back, or another's: followed from when its debtor's machine says so.

import type { LengthEffect, LengthInstance } from '../../core/instance/length-instance.ts';
import { lentName } from '../../core/lending/debtor/block-moves.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';

/** A block of a creditor, as its debtor had it when the copy began. */
interface Borrowed {
  readonly creditor: InstanceIndex;
  /** What it is called. */
  readonly at: number;
  /** Undefined: the debtor had none of that name. */
  readonly held: { readonly loan: number; readonly block: number; readonly rblock: number | undefined } | undefined;
}

type Start = Extract<LengthEffect, { kind: 'moveBlocks' }>;

/** What leaves home is followed where it is in tables (`Transfers`); places at home that something comes to are not followed. */
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

  /** An instance starts anew. @param begins as the names of its copies do */
  gone(begins: string): void {
    for (const name of [...this.#copies.keys()]) if (name.startsWith(begins)) this.#copies.delete(name);
  }

  /** The first block of a copy that is not as it was when that began; undefined: all are, and of one that was stopped, none is followed. @param life of the debtor, as creditors count it */
  lost(
    name: string,
    debtor: InstanceIndex,
    incarnation: number,
    instances: readonly LengthInstance[],
  ): { readonly creditor: InstanceIndex; readonly at: number } | undefined {
    return this.#copies.get(name)?.find((each) => !isHeld(each, debtor, incarnation, instances));
  }
}

function borrowed({ borrower }: LengthInstance, creditor: InstanceIndex, at: number): Borrowed {
  for (const debt of borrower?.rmanager.debts ?? []) {
    if (debt.creditor !== creditor) continue;
    const { number: loan, memory } = debt;
    for (const blocks of [debt.used, debt.frozen])
      for (const [block, rblock] of blocks)
        if (lentName(memory, block) === at) return { creditor, at, held: { loan, block, rblock } };
  }
  return { creditor, at, held: undefined };
}

/** By whoever had it, and the creditor lends it. What a settlement has frozen is nobody else's, whoever lets go of it. */
function isHeld(
  { creditor, held }: Borrowed,
  debtor: InstanceIndex,
  incarnation: number,
  instances: readonly LengthInstance[],
): boolean {
  if (held === undefined) return false;
  const { loan, block, rblock } = held;
  const debt = instances[debtor].borrower?.rmanager.debtor.find(loan);
  if (debt?.frozen.has(block) !== true && (rblock === undefined || debt?.used.get(block) !== rblock)) return false;
  const lent = instances[creditor].borrower?.rmanager.creditor.blocksOf(debtor, incarnation, loan);
  return lent?.has(block) === true;
}
