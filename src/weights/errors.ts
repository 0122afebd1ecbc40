// The one error of this room: a model file that cannot be used, with the place that shows it.
import { oneLine } from '../util/one-line.ts';

export interface ModelFileProblem {
  readonly file: string;
  /** Why, with figures. */
  readonly reason: string;
  readonly tensor?: string | undefined;
  readonly key?: string | undefined;
  /** Byte offset in the file. */
  readonly offset?: number | undefined;
}

/** A file that is missing, corrupt, truncated or beyond what is supported. The message is one line. */
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

/** A name out of a file, made safe for one line of a log. */
export function quoteName(name: string): string {
  return `"${oneLine(name, 120)}"`;
}

/** What the system or a parser said, as the reason of a ModelFileError. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
