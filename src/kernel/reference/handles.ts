// Objects of the reference backend by handle.

export class Handles<T> {
  readonly #name: string;
  readonly #values = new Map<number, T>();
  #next = 1;

  constructor(name: string) {
    this.#name = name;
  }

  add(value: T): number {
    this.#values.set(this.#next, value);
    return this.#next++;
  }

  get(handle: number): T {
    const value = this.#values.get(handle);
    if (value === undefined) throw new Error(`Cannot use ${this.#name}: no such handle: ${handle}`);
    return value;
  }

  find(handle: number): T | undefined {
    return this.#values.get(handle);
  }

  free(handle: number): T {
    const value = this.get(handle);
    this.#values.delete(handle);
    return value;
  }

  clear(): void {
    this.#values.clear();
  }
}
