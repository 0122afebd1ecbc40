// Metadata keys of a GGUF file under its architecture's prefix.
import { sizeMax } from '../config-limits.ts';
import type { GgufMetadata } from './gguf-metadata.ts';

export class ArchitectureKeys {
  readonly #metadata: GgufMetadata;
  readonly #prefix: string;

  constructor(metadata: GgufMetadata, architecture: string) {
    this.#metadata = metadata;
    this.#prefix = architecture;
  }

  /** A size or count above 0. A per-layer array must hold one value throughout. */
  optionalSize(name: string, limit = sizeMax): number | undefined {
    const values = this.#metadata.numbers(this.#key(name));
    const value = values?.[0];
    if (values === undefined || value === undefined || value === 0) return undefined;
    if (values.some((other) => other !== value)) this.fail(name, 'layers with different values are not supported');
    if (!Number.isSafeInteger(value) || value < 0 || value > limit)
      this.fail(name, `${value} is not an integer from 1 to ${limit}`);
    return value;
  }

  size(name: string, limit = sizeMax): number {
    return this.optionalSize(name, limit) ?? this.fail(name, 'the value is missing or 0');
  }

  number(name: string): number | undefined {
    return this.#metadata.number(this.#key(name));
  }

  /** A number above 0. A stored 0 counts as missing. */
  positive(name: string): number | undefined {
    const value = this.number(name);
    if (value !== undefined && value < 0) this.fail(name, `${value} is not above 0`);
    return value === 0 ? undefined : value;
  }

  string(name: string): string | undefined {
    return this.#metadata.string(this.#key(name));
  }

  /** A list of booleans; undefined when the key is missing or holds no list. */
  flags(name: string): readonly boolean[] | undefined {
    return this.#metadata.booleans(this.#key(name));
  }

  refuse(name: string, reason: string): void {
    if ((this.number(name) ?? 0) !== 0) this.fail(name, reason);
  }

  fail(name: string, reason: string): never {
    return this.#metadata.fail(this.#key(name), reason);
  }

  #key(name: string): string {
    return `${this.#prefix}.${name}`;
  }
}
