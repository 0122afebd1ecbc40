// A promise that resolves with the reason of the first end.

export class Completion {
  readonly ended: Promise<string>;
  #resolve: (why: string) => void = () => {};

  constructor() {
    this.ended = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  /** Only the first call has an effect. */
  end(why: string): void {
    this.#resolve(why);
  }
}
