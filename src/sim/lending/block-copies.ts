// Copies of lent blocks on their way between instances, and what their debtors hear of how they end.

import type { MoveNumber } from '../../core/protocol/ids.ts';
import type { BlocksToMove, FilledBlocks } from '../../core/protocol/lending-effects.ts';
import type { Departed, Network } from '../network/network.ts';
import type { ToldEvent as Event } from './lending-host.ts';

interface Copy {
  readonly debtor: number;
  readonly move: MoveNumber;
  readonly from: number;
  readonly to: number;
  readonly kind: BlocksToMove['purpose'];
  readonly blocks: number;
  /** Which starts of its two ends it is between. */
  readonly incarnations: readonly number[];
  /** Of those that leave home: where they are, by place. */
  readonly rows: number[];
}

/** Between two looks at whether something else still reads what has left. */
const releaseUs = 1000;

interface Delivery {
  /** The debtor hears it so much later, if it is the same life then. */
  readonly tell: (us: number, debtor: number, event: Event) => void;
  readonly later: (us: number, action: () => void) => void;
  readonly reaches: (a: number, b: number) => boolean;
  /** Is the creditor there, and the one that lent? */
  readonly answers: (debtor: number, creditor: number) => boolean;
  readonly incarnationOf: (instance: number) => number;
  /** May something else still be read from these rows of an instance's page table? */
  readonly reads: (instance: number, rows: readonly number[]) => boolean;
}

/** A copy arrives, or its debtor hears that it has not: so connections end. */
export class BlockCopies {
  readonly #network: Network;
  readonly #blockBytes: readonly number[];
  readonly #delivery: Delivery;
  /** By the names of their streams. */
  readonly #copies = new Map<string, Copy>();

  /** (instances): until when the link to its own host memory is busy. */
  readonly #hostUntilUs: Float64Array;
  readonly #hostBlockUs: readonly number[];

  /** @param blockBytes (instances) @param hostBlockUs (instances): of a block, to its own host memory */
  constructor(network: Network, blockBytes: readonly number[], hostBlockUs: readonly number[], delivery: Delivery) {
    this.#hostBlockUs = hostBlockUs;
    this.#hostUntilUs = new Float64Array(blockBytes.length);
    this.#network = network;
    this.#blockBytes = blockBytes;
    this.#delivery = delivery;
  }

  start(nowUs: number, debtor: number, { move, from, to, sources, targets, purpose: kind }: BlocksToMove): void {
    const { incarnationOf, reaches, answers } = this.#delivery;
    const name = nameOf(debtor, move);
    const copy = {
      debtor,
      move,
      from,
      to,
      kind,
      blocks: targets.length,
      incarnations: [incarnationOf(from), incarnationOf(to)],
      rows: [],
    };
    const news = newsOf(copy, (a, b) => (a === debtor ? !answers(a, b) : !reaches(a, b)));
    for (const event of news) this.#delivery.tell(0, debtor, event);
    if (news.length > 0) return;
    this.#copies.set(name, copy);
    if (sources === undefined) return;
    const bytes = sources.length * this.#blockBytes[debtor];
    this.#network.stream(nowUs, { from, to, name, kind }, { bytes, untilUs: nowUs, last: true });
  }

  /** Blocks of the debtor's leave: those that a step computes until it ends. */
  fill(nowUs: number, debtor: number, { move, at, sources, step, last }: FilledBlocks, stepEndsUs: number): void {
    const name = nameOf(debtor, move);
    const copy = this.#copies.get(name);
    if (copy === undefined) return;
    const { from, to, kind, blocks, rows } = copy;
    rows.splice(at, sources.length, ...sources);
    if (from === to) {
      if (last) this.#toHost(nowUs, name, copy, blocks);
      return;
    }
    const bytes = sources.length * this.#blockBytes[debtor];
    const untilUs = step === undefined ? nowUs : stepEndsUs;
    this.#network.stream(nowUs, { from, to, name, kind }, { bytes, untilUs, last });
  }

  /** One after the other. */
  #toHost(nowUs: number, name: string, copy: Copy, blocks: number): void {
    const { debtor } = copy;
    const endUs = Math.max(nowUs, this.#hostUntilUs[debtor]) + Math.ceil(blocks * this.#hostBlockUs[debtor]);
    this.#hostUntilUs[debtor] = endUs;
    this.#delivery.later(endUs - nowUs, () => {
      if (this.#copies.get(name) !== copy) return;
      this.#copies.delete(name);
      this.#tellMoved(copy);
    });
  }

  stop(nowUs: number, debtor: number, move: MoveNumber): void {
    const name = nameOf(debtor, move);
    const copy = this.#copies.get(name);
    if (copy === undefined) return;
    this.#copies.delete(name);
    this.#network.stop(nowUs, { ...copy, name });
  }

  /** The last bytes have left: the debtor hears when they have arrived, from the creditor if they went there. */
  departed({ name, us }: Departed): void {
    const copy = this.#copies.get(name);
    if (copy === undefined) return;
    this.#copies.delete(name);
    const { debtor, move, from, to, incarnations } = copy;
    const { incarnationOf, reaches, tell, later } = this.#delivery;
    const incarnation = incarnationOf(debtor);
    later(to === debtor ? us : 2 * us, () => {
      if (incarnationOf(debtor) !== incarnation) return;
      const arrived =
        incarnationOf(from) === incarnations[0] && incarnationOf(to) === incarnations[1] && reaches(to, debtor);
      if (arrived) this.#tellMoved(copy);
      else tell(0, debtor, { kind: 'moveBroken', move });
    });
  }

  /** Once nothing else reads where it was. */
  #tellMoved(copy: Copy): void {
    const { debtor, move, rows, from } = copy;
    const { incarnationOf, reads, tell, later } = this.#delivery;
    const incarnation = incarnationOf(debtor);
    if (from !== debtor || !reads(debtor, rows)) tell(0, debtor, { kind: 'moved', move });
    else later(releaseUs, () => incarnationOf(debtor) === incarnation && this.#tellMoved(copy));
  }

  /** Connections between such instances have ended: who used one, and what it hears. */
  break(nowUs: number, isBroken: (a: number, b: number) => boolean): readonly (readonly [number, Event])[] {
    const told: [number, Event][] = [];
    for (const copy of [...this.#copies.values()]) {
      const news = newsOf(copy, isBroken);
      if (news.length > 0) this.stop(nowUs, copy.debtor, copy.move);
      for (const event of news) told.push([copy.debtor, event]);
    }
    return told;
  }

  /** Nobody is left who wants what it was moving. */
  died(nowUs: number, debtor: number): void {
    for (const copy of [...this.#copies.values()]) if (copy.debtor === debtor) this.stop(nowUs, debtor, copy.move);
  }
}

function nameOf(debtor: number, move: MoveNumber): string {
  return `lent ${debtor} ${move}`;
}

/** What the debtor hears of a copy, if its connections are broken. */
function newsOf({ debtor, move, from, to }: Copy, isBroken: (a: number, b: number) => boolean): readonly Event[] {
  const cut = [from, to].filter((creditor) => creditor !== debtor && isBroken(debtor, creditor));
  if (cut.length > 0) return cut.map((creditor) => ({ kind: 'creditorCut', creditor }));
  return isBroken(from, to) ? [{ kind: 'moveBroken', move }] : [];
}
