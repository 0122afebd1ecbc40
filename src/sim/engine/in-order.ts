// Effects of machines in the order in which they were asked for, also where carrying one out makes the same machine act again.

/** What a machine asks for while effects of it are being carried out comes after those. */
export class InOrder<Effect> {
  readonly #perform: (machine: number, effect: Effect) => void;
  /** (machines) */
  readonly #busy: Uint8Array;
  /** (machines): what waits for the effects before it. */
  readonly #late: readonly Effect[][];

  /** @param perform carries one effect out, at once */
  constructor(machines: number, perform: (machine: number, effect: Effect) => void) {
    this.#perform = perform;
    this.#busy = new Uint8Array(machines);
    this.#late = Array.from({ length: machines }, () => []);
  }

  perform(machine: number, effects: readonly Effect[]): void {
    const late = this.#late[machine];
    if (this.#busy[machine] === 1) {
      for (const effect of effects) late.push(effect);
      return;
    }
    this.#busy[machine] = 1;
    for (const effect of effects) this.#perform(machine, effect);
    this.#busy[machine] = 0;
    if (late.length > 0) this.#performLate(machine);
  }

  #performLate(machine: number): void {
    const late = this.#late[machine];
    this.#busy[machine] = 1;
    // It grows meanwhile.
    for (let i = 0; i < late.length; i++) this.#perform(machine, late[i]);
    late.length = 0;
    this.#busy[machine] = 0;
  }
}
