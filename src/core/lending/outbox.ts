// Collects the effects of one step of a lending machine.
import type {
  Envelope,
  LendingEffect,
  LendingMessage,
  LendingMessageKind,
  MessageAnomaly,
  Party,
} from '../protocol/lending-messages.ts';

export class Outbox {
  readonly from: Party;
  readonly incarnation: number;
  nowUs = 0;
  #effects: LendingEffect[] = [];
  #lostRBlocks: number[] = [];

  constructor(from: Party, incarnation: number) {
    this.from = from;
    this.incarnation = incarnation;
  }

  begin(nowUs: number): void {
    this.nowUs = nowUs;
    this.#effects = [];
    this.#lostRBlocks = [];
  }

  /** The effects of the step. Lost rBlocks come first, in one effect, because one sequence may lose several. */
  get effects(): readonly LendingEffect[] {
    if (this.#lostRBlocks.length > 0) return [{ kind: 'rblocksLost', rblocks: this.#lostRBlocks }, ...this.#effects];
    return this.#effects;
  }

  rblocksLost(rblocks: readonly number[]): void {
    this.#lostRBlocks.push(...rblocks);
  }

  push(effect: LendingEffect): void {
    this.#effects.push(effect);
  }

  /** @param toIncarnation undefined: any incarnation of the receiver */
  send(to: Party, toIncarnation: number | undefined, message: LendingMessage): void {
    const envelope: Envelope = { from: this.from, fromIncarnation: this.incarnation, to, toIncarnation, message };
    this.#effects.push({ kind: 'send', envelope });
  }

  countAnomaly(anomaly: MessageAnomaly, message: LendingMessageKind): void {
    this.#effects.push({ kind: 'anomaly', anomaly, message });
  }
}
