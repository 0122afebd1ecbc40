// A network that loses, doubles, delays and cuts off what lending machines say.
import type { Envelope, Party } from '../../core/protocol/lending-messages.ts';
import type { Prng } from '../../util/prng.ts';
import type { Agenda } from './agenda.ts';
import type { FaultName, LendingFaults } from './faults.ts';

export class LendingNetwork {
  readonly #agenda: Agenda;
  readonly #prng: Prng;
  readonly #deliver: (envelope: Envelope) => void;
  readonly #count: (fault: FaultName) => void;
  #faults: LendingFaults | undefined;
  readonly #cutOff = new Set<Party>();

  /** @param faults undefined: nothing goes wrong */
  constructor(
    agenda: Agenda,
    prng: Prng,
    faults: LendingFaults | undefined,
    deliver: (envelope: Envelope) => void,
    count: (fault: FaultName) => void,
  ) {
    this.#agenda = agenda;
    this.#prng = prng;
    this.#faults = faults;
    this.#deliver = deliver;
    this.#count = count;
  }

  /** Messages are lost, doubled and late again. */
  harm(faults: LendingFaults): void {
    this.#faults = faults;
  }

  /** From now on nothing goes wrong any more. */
  heal(): void {
    this.#faults = undefined;
    this.#cutOff.clear();
  }

  /** These hear one another but nobody else. */
  cut(parties: readonly Party[]): void {
    this.#count('partition');
    for (const party of parties) this.#cutOff.add(party);
  }

  join(parties: readonly Party[]): void {
    for (const party of parties) this.#cutOff.delete(party);
  }

  send(envelope: Envelope): void {
    const faults = this.#faults;
    if (faults === undefined) {
      this.#post(envelope, this.#prng.integer(100, 2_000));
      return;
    }
    if (this.#prng.chance(faults.lossRatio)) {
      this.#count('loss');
      return;
    }
    const copies = this.#prng.chance(faults.duplicateRatio) ? 2 : 1;
    if (copies === 2) this.#count('duplication');
    for (let i = 0; i < copies; i++) {
      let delayUs = this.#prng.integer(100, 2_000);
      if (this.#prng.chance(faults.delayRatio)) {
        this.#count('delay');
        delayUs += this.#prng.exponentialUs(faults.delayUsMean);
      }
      this.#post(envelope, delayUs);
    }
  }

  #post(envelope: Envelope, delayUs: number): void {
    this.#agenda.after(delayUs, () => {
      if (this.#cutOff.has(envelope.from) === this.#cutOff.has(envelope.to)) this.#deliver(envelope);
    });
  }
}
