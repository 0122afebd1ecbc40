// The invariants between instances that lend: after every event, and at rest.

import { type InstanceMemory, memories } from '../../core/lending/instance-memory.ts';
import type { GManager } from '../../core/lending/manager/gmanager.ts';
import type { RManager } from '../../core/lending/rmanager.ts';
import type { Envelope, LendingEffect } from '../../core/protocol/lending-messages.ts';

/** An instance that lends or borrows. */
export interface LendingInstance {
  readonly instance: number;
  /** Offset of its clock. */
  readonly skewUs: number;
  /** Undefined: the instance is down. */
  readonly incarnation: { readonly number: number; readonly rmanager: RManager } | undefined;
}

interface MemoryInstance extends LendingInstance {
  readonly incarnation:
    | { readonly number: number; readonly rmanager: RManager; readonly memory: InstanceMemory }
    | undefined;
}

/** Throws unless every block that a debtor may use now is lent to it, under that loan, by the incarnation that granted the loan. */
export function checkLoans(nowUs: number, nodes: readonly LendingInstance[]): void {
  for (const node of nodes) {
    for (const debt of node.incarnation?.rmanager.debts ?? []) {
      if (debt.state !== 'held' || debt.leaseEndUs <= nowUs + node.skewUs) continue;
      const creditor = nodes[debt.creditor].incarnation;
      if (creditor?.number !== debt.creditorIncarnation) continue;
      const lent = creditor.rmanager.creditor.blocksOf(node.instance, node.incarnation?.number ?? 0, debt.number);
      for (const blocks of [debt.idle, debt.used.keys(), debt.frozen.keys()]) {
        for (const block of blocks) {
          if (lent?.has(block) !== true)
            throw new Error(
              `Lending broken: instance ${node.instance} uses ${debt.memory} block ${block} of ${debt.creditor}, which does not lend it: loan ${debt.number}`,
            );
        }
      }
    }
  }
}

/** Throws when an instance is to vacate a block that is guaranteed to a running sequence. */
export function checkVacatedBlocks({ instance, incarnation }: LendingInstance, rblocks: readonly number[]): void {
  for (const rblock of rblocks) {
    const place = incarnation?.rmanager.find(rblock);
    if (place?.kind === 'remote' && incarnation?.rmanager.debtor.find(place.loan)?.guaranteed === true)
      throw new Error(`Lending broken: instance ${instance} is to vacate rBlock ${rblock}, which was guaranteed`);
  }
}

/** By guaranteed loan: the number of blocks that the debtor may keep. */
export function guaranteedLoans({ incarnation }: LendingInstance): ReadonlyMap<number, number> {
  const kept = new Map<number, number>();
  for (const { number, guaranteed, keep } of incarnation?.rmanager.debts ?? []) if (guaranteed) kept.set(number, keep);
  return kept;
}

/** Throws when a recall reduced a guaranteed loan. @param before `guaranteedLoans` before the recall */
export function checkRecall({ instance, incarnation }: LendingInstance, before: ReadonlyMap<number, number>): void {
  for (const [loan, keep] of before) {
    const debt = incarnation?.rmanager.debtor.find(loan);
    if (debt?.guaranteed === true && debt.keep < keep)
      throw new Error(`Lending broken: instance ${instance} obeys a recall of loan ${loan}, which was guaranteed`);
  }
}

/** rBlocks at creditors that no settlement has frozen. A settlement commit must not move them: it reduces a debt by the prepared blocks alone. */
export function unfrozen(node: LendingInstance): readonly number[] {
  const rblocks: number[] = [];
  for (const { used } of node.incarnation?.rmanager.debts ?? []) rblocks.push(...used.values());
  return rblocks;
}

/** Throws when a settlement commit moved an rBlock that was not prepared. @param before `unfrozen` before the commit */
export function checkSettlementCommit(node: LendingInstance, before: readonly number[]): void {
  for (const rblock of before) {
    const kind = node.incarnation?.rmanager.find(rblock)?.kind ?? 'remote';
    if (kind !== 'remote')
      throw new Error(`Lending broken: instance ${node.instance} settled rBlock ${rblock}, which was not prepared`);
  }
}

/** Borrow requests without an answer. A creditor must answer in the step that receives the request, so that no cycle of waiting arises. */
export class BorrowWaits {
  readonly #waits = new Map<
    string,
    { readonly debtor: number; readonly creditor: number; readonly incarnation: number }
  >();

  /** An instance has handled `envelope` with these effects. */
  stepped({ from, fromIncarnation, to, message }: Envelope, effects: readonly LendingEffect[]): void {
    if (message.kind === 'borrow' && typeof from === 'number' && typeof to === 'number') {
      const answered = effects.some((effect) => effect.kind === 'anomaly' && effect.anomaly !== 'lost');
      if (!answered)
        this.#waits.set(`${from} ${fromIncarnation} ${message.loan}`, {
          debtor: from,
          creditor: to,
          incarnation: fromIncarnation,
        });
    }
    for (const effect of effects) {
      if (effect.kind !== 'send') continue;
      const { to: debtor, toIncarnation, message: answer } = effect.envelope;
      if (answer.kind === 'lend' || answer.kind === 'refuse')
        this.#waits.delete(`${debtor} ${toIncarnation} ${answer.loan}`);
    }
  }

  /** Throws when instances wait for one another in a cycle. Requests of failed instances, and cancelled ones, do not wait. */
  check(nodes: readonly LendingInstance[]): void {
    const waits = new Map<number, number>();
    for (const [key, { debtor, creditor, incarnation }] of this.#waits) {
      const loan = Number(key.split(' ')[2]);
      const current = nodes[debtor].incarnation;
      const isWaiting = current?.number === incarnation && current.rmanager.debtor.find(loan)?.state === 'asked';
      if (isWaiting) waits.set(debtor, creditor);
      else this.#waits.delete(key);
    }
    for (const start of waits.keys()) {
      const path = [start];
      for (let at = waits.get(start); at !== undefined; at = waits.get(at)) {
        if (path.includes(at)) throw new Error(`Lending broken: a cycle of waiting: ${[...path, at].join(' -> ')}`);
        path.push(at);
      }
    }
  }
}

/** All messages have been received. Throws unless the ledger equals the loans, both sides of each loan agree, and failed instances hold nothing. */
export function checkAtRest(nodes: readonly LendingInstance[], { ledger }: GManager): void {
  for (const memory of memories) {
    for (const { instance: creditor, incarnation } of nodes) {
      const totals = incarnation?.rmanager.creditor.totals ?? [];
      for (const { instance: debtor } of nodes) {
        const lent = totals.find((total) => total.debtor === debtor && total.memory === memory)?.blocks ?? 0;
        const debts = nodes[debtor].incarnation?.rmanager.debtor.totals ?? [];
        const owed = debts.find((debt) => debt.creditor === creditor && debt.memory === memory)?.blocks ?? 0;
        const known = ledger.lent(creditor, debtor, memory);
        if (lent !== owed || lent !== known)
          throw new Error(
            `Lending broken at rest: ${creditor} lends ${lent} ${memory} blocks to ${debtor}, which holds ${owed}; the ledger has ${known}`,
          );
      }
    }
  }
}

/** Every sequence has ended. Throws unless nothing is lent, borrowed, staged or in use. */
export function checkEmpty(nodes: readonly MemoryInstance[]): void {
  for (const { instance, incarnation } of nodes) {
    if (incarnation === undefined) continue;
    const { rmanager, memory } = incarnation;
    const leaked = [...rmanager.debts].length + rmanager.creditor.totals.length + rmanager.table.size;
    const pages = memory.heldPages;
    if (leaked + pages > 0)
      throw new Error(
        `Lending broken: instance ${instance} leaks: ${pages} pages, ${[...rmanager.debts].length} debts, ${rmanager.creditor.totals.length} loans, ${rmanager.table.size} rBlocks`,
      );
  }
}
