// Options that the benches share.
import { Option } from 'commander';
import { z } from 'zod';
import { kvTypeOf } from '../../engine/forms.ts';
import { kvTokenBytes } from '../../util/kv-type.ts';
import { pageTokens } from '../../util/step.ts';
import { openModel } from '../../weights/open-model.ts';
import { modelOptionsSchema } from '../options/options.ts';
import { locateModel } from '../serve/model/locate-model.ts';

/** Prints a progress line on stderr. */
export function progress(line: string): void {
  console.error(line);
}

/** The model and its forms. */
export const benchModelSchema = modelOptionsSchema.pick({ model: true, weights: true, inputs: true, kvType: true });

/** A whole number of at least 1. */
export function count(otherwise: number) {
  return z.coerce.number().int().min(1).default(otherwise);
}

export function threadsFlag(): Option {
  return new Option('--threads <n>', 'Compute with this number of threads (default: all cores)');
}

/** `a,b,c` on the command line. */
export function list<Item extends z.ZodType>(item: Item, otherwise: readonly z.output<Item>[]) {
  return z
    .union([z.string().transform((text) => text.split(',').map((part) => part.trim())), z.array(z.unknown())])
    .pipe(z.array(item).min(1))
    .optional()
    .transform((items) => items ?? [...otherwise]);
}

/** `1,8,32`, each at least `least`. */
export function counts(least: number, otherwise: readonly number[]) {
  return list(z.coerce.number().int().min(least), otherwise);
}

/** Keys and values of one block, all layers. */
export async function blockBytesOf({ model, ...forms }: z.output<typeof benchModelSchema>): Promise<number> {
  const files = openModel((await locateModel(model)).path);
  try {
    return files.config.layers * kvTokenBytes(files.config, kvTypeOf(forms)) * pageTokens;
  } finally {
    files.close();
  }
}
