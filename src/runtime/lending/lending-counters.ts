// What an instance counts of each other that lends to it or borrows from it.
import type { Debtor } from '../../core/lending/debtor/debtor.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { LendingLink, LendingSnapshot } from '../../core/protocol/ports.ts';
import type { PageTransport } from '../transfer/messenger.ts';

interface Counts {
  movedBytes: number;
  refusals: number;
  transport?: PageTransport;
}

export class LendingCounters {
  readonly #counts = new Map<InstanceIndex, Counts>();
  /** Those that have borrowed here. */
  readonly #debtors = new Set<InstanceIndex>();

  /** @param way undefined: not known */
  moved(peer: InstanceIndex, bytes: number, way: PageTransport | undefined): void {
    const counts = this.#of(peer);
    counts.movedBytes += bytes;
    if (way !== undefined) counts.transport = way;
  }

  lent(debtor: InstanceIndex): void {
    this.#debtors.add(debtor);
  }

  heard({ from, message }: Envelope): void {
    if (message.kind === 'refuse' && from !== 'gmanager') this.#of(from).refusals++;
  }

  #of(peer: InstanceIndex): Counts {
    const counts = this.#counts.get(peer) ?? { movedBytes: 0, refusals: 0 };
    this.#counts.set(peer, counts);
    return counts;
  }

  /** @param guests of a debtor's queries here */
  all(
    totals: Debtor['totals'],
    guests: (debtor: InstanceIndex) => Omit<LendingSnapshot['guests'], 'seconds' | 'restSeconds'> | undefined,
  ): readonly LendingLink[] {
    const peers = new Set([...this.#counts.keys(), ...this.#debtors, ...totals.map(({ creditor }) => creditor)]);
    return [...peers]
      .sort((a, b) => a - b)
      .map((peer) => {
        const debts = totals.filter(({ creditor }) => creditor === peer);
        const { queries = 0, refused = 0, bytesIn = 0, bytesOut = 0 } = guests(peer) ?? {};
        const asked = { queries, refusedQueries: refused, queryBytes: bytesIn, partialBytes: bytesOut };
        const borrowedBlocks = debts.reduce((sum, { blocks }) => sum + blocks, 0);
        return { peer, borrowedBlocks, ...this.#of(peer), ...asked };
      });
  }
}
