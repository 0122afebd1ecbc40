// The error of src/weights: a model file that cannot be used, with its file, tensor, key or offset.
import { oneLine } from '../util/one-line.ts';

export interface ModelFileProblem {
  readonly file: string;
  /** The reason, with figures. */
  readonly reason: string;
  readonly tensor?: string | undefined;
  readonly key?: string | undefined;
  /** Byte offset in the file. */
  readonly offset?: number | undefined;
}

/** A file that is missing, corrupt, truncated or unsupported. The message is one line. */
export class ModelFileError extends Error {
  readonly file: string;
  readonly tensor: string | undefined;
  readonly key: string | undefined;
  readonly offset: number | undefined;

  constructor(problem: ModelFileProblem) {
    const { file, reason, tensor, key, offset } = problem;
    const places: string[] = [];
    if (tensor !== undefined) places.push(`tensor ${quoteName(tensor)}`);
    if (key !== undefined) places.push(`key ${quoteName(key)}`);
    if (offset !== undefined) places.push(`offset ${offset}`);
    const where = places.length > 0 ? ` (${places.join(', ')})` : '';
    super(`Cannot read ${oneLine(file, 1000)}: ${oneLine(reason, 400)}${where}`);
    this.name = 'ModelFileError';
    this.file = file;
    this.tensor = tensor;
    this.key = key;
    this.offset = offset;
  }
}

/** A name from a file, shortened and made printable for one line of a log. */
export function quoteName(name: string): string {
  return `"${oneLine(name, 120)}"`;
}

/** The message of a system or parser error, as the reason of a ModelFileError. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
