// Copies of lent blocks between simulated instances, and the events that their debtors receive at the end.

import type { LengthEvent } from '../../../core/instance/length-instance.ts';
import type { MoveNumber } from '../../../core/protocol/ids.ts';
import type { BlocksToMove, FilledBlocks } from '../../../core/protocol/lending-effects.ts';
import type { Departed, Network } from '../../network/network.ts';
import type { EventQueue } from '../event-queue.ts';

interface Copy {
  readonly debtor: number;
  readonly move: MoveNumber;
  readonly from: number;
  readonly to: number;
  readonly kind: BlocksToMove['purpose'];
  readonly blocks: number;
  /** Incarnations of the two instances when the copy started. */
  readonly incarnations: readonly number[];
  /** Rows of the debtor's page table that it reads, in order. */
  readonly rows: number[];
}

/** Interval between checks whether another stream still reads the same rows. */
const releaseUs = 1000;

interface CopyHost {
  readonly queue: EventQueue;
  readonly network: Network;
  readonly streams: { reads(instance: number, rows: readonly number[]): boolean };
  readonly executors: readonly { readonly endsUs: number }[];
  /** Delivers after `us`, unless the debtor restarts before. */
  sendToDebtor(us: number, debtor: number, event: LengthEvent): void;
  isConnected(a: number, b: number): boolean;
  /** True if the creditor is reachable, and in the incarnation that lent. */
  answers(debtor: number, creditor: number): boolean;
  incarnationOf(instance: number): number;
}

/** Every copy completes, or its debtor is notified that it failed, as over a connection. */
export class BlockCopies {
  readonly #host: CopyHost;
  /** (instances) */
  readonly #blockBytes: readonly number[];
  /** By stream name. */
  readonly #copies = new Map<string, Copy>();
  /** (instances): end of the copies to the instance's own host memory. */
  readonly #hostUntilUs: Float64Array;
  /** (instances): time of one block to the instance's own host memory. */
  readonly #hostBlockUs: readonly number[];

  constructor(host: CopyHost, blockBytes: readonly number[], hostBlockUs: readonly number[]) {
    this.#host = host;
    this.#blockBytes = blockBytes;
    this.#hostBlockUs = hostBlockUs;
    this.#hostUntilUs = new Float64Array(blockBytes.length);
  }

  start(debtor: number, { move, from, to, sources, targets, purpose: kind }: BlocksToMove): void {
    const name = nameOf(debtor, move);
    const incarnations = [this.#host.incarnationOf(from), this.#host.incarnationOf(to)];
    const copy: Copy = { debtor, move, from, to, kind, blocks: targets.length, incarnations, rows: [] };
    const failures = failuresOf(copy, (a, b) =>
      a === debtor ? !this.#host.answers(a, b) : !this.#host.isConnected(a, b),
    );
    for (const event of failures) this.#host.sendToDebtor(0, debtor, event);
    if (failures.length > 0) return;
    this.#copies.set(name, copy);
    if (sources !== undefined) this.#stream(copy, sources.length, undefined, true);
  }

  /** Copies blocks of the debtor: at once, or as the step that computes them runs. */
  fill(debtor: number, { move, at, sources, step, last }: FilledBlocks): void {
    const copy = this.#copies.get(nameOf(debtor, move));
    if (copy === undefined) return;
    copy.rows.splice(at, sources.length, ...sources);
    if (copy.from !== copy.to) this.#stream(copy, sources.length, step, last);
    else if (last) this.#copyToHost(copy);
  }

  #stream({ debtor, move, from, to, kind }: Copy, blocks: number, step: number | undefined, last: boolean): void {
    const { network, queue, executors } = this.#host;
    const { nowUs } = queue;
    const bytes = blocks * this.#blockBytes[debtor];
    const untilUs = step === undefined ? nowUs : executors[debtor].endsUs;
    network.stream(nowUs, { from, to, name: nameOf(debtor, move), kind }, { bytes, untilUs, last });
  }

  /** Copies to the debtor's own host memory run one after another. */
  #copyToHost(copy: Copy): void {
    const { debtor, move, blocks } = copy;
    const { queue } = this.#host;
    const startUs = Math.max(queue.nowUs, this.#hostUntilUs[debtor]);
    const endUs = startUs + Math.ceil(blocks * this.#hostBlockUs[debtor]);
    this.#hostUntilUs[debtor] = endUs;
    queue.afterInBackground(endUs - queue.nowUs, () => {
      if (this.#copies.get(nameOf(debtor, move)) !== copy) return;
      this.#copies.delete(nameOf(debtor, move));
      this.#notifyMoved(copy);
    });
  }

  stop(debtor: number, move: MoveNumber): void {
    const name = nameOf(debtor, move);
    const copy = this.#copies.get(name);
    if (copy === undefined) return;
    this.#copies.delete(name);
    this.#host.network.stop(this.#host.queue.nowUs, { ...copy, name });
  }

  /** The last bytes have left. The debtor is notified of their arrival, if they went to a creditor by a message of it. */
  departed({ name, us }: Departed): void {
    const copy = this.#copies.get(name);
    if (copy === undefined) return;
    this.#copies.delete(name);
    const { debtor, move, from, to, incarnations } = copy;
    this.#unlessRestarted(debtor, to === debtor ? us : 2 * us, () => {
      const arrived =
        this.#host.incarnationOf(from) === incarnations[0] &&
        this.#host.incarnationOf(to) === incarnations[1] &&
        this.#host.isConnected(to, debtor);
      if (arrived) this.#notifyMoved(copy);
      else this.#host.sendToDebtor(0, debtor, { kind: 'moveBroken', move });
    });
  }

  /** Notifies the debtor once no other stream reads the rows that were copied. */
  #notifyMoved(copy: Copy): void {
    const { debtor, move, rows, from } = copy;
    if (from !== debtor || !this.#host.streams.reads(debtor, rows))
      this.#host.sendToDebtor(0, debtor, { kind: 'moved', move });
    else this.#unlessRestarted(debtor, releaseUs, () => this.#notifyMoved(copy));
  }

  #unlessRestarted(debtor: number, us: number, action: () => void): void {
    const incarnation = this.#host.incarnationOf(debtor);
    this.#host.queue.afterInBackground(us, () => {
      if (this.#host.incarnationOf(debtor) === incarnation) action();
    });
  }

  /** Ends copies over broken connections. Returns the events of their debtors. */
  break(isBroken: (a: number, b: number) => boolean): readonly (readonly [number, LengthEvent])[] {
    const events: [number, LengthEvent][] = [];
    for (const copy of [...this.#copies.values()]) {
      const failures = failuresOf(copy, isBroken);
      if (failures.length > 0) this.stop(copy.debtor, copy.move);
      for (const event of failures) events.push([copy.debtor, event]);
    }
    return events;
  }

  debtorFailed(debtor: number): void {
    for (const copy of [...this.#copies.values()]) if (copy.debtor === debtor) this.stop(debtor, copy.move);
  }
}

function nameOf(debtor: number, move: MoveNumber): string {
  return `lent ${debtor} ${move}`;
}

/** The events that the debtor of a copy receives if connections are broken. */
function failuresOf(
  { debtor, move, from, to }: Copy,
  isBroken: (a: number, b: number) => boolean,
): readonly LengthEvent[] {
  const cut = [from, to].filter((creditor) => creditor !== debtor && isBroken(debtor, creditor));
  if (cut.length > 0) return cut.map((creditor) => ({ kind: 'creditorCut', creditor }));
  return isBroken(from, to) ? [{ kind: 'moveBroken', move }] : [];
}
