// The pooling that a folder of sentence-transformers states: modules.json names the module, whose config.json has it.
import { join, normalize, sep } from 'node:path';
import { z } from 'zod';
import type { Pooling } from '../../util/model-config.ts';
import { ModelFileError } from '../errors.ts';
import { readOptionalJson, validate } from './json-file.ts';

const bytesMax = 1 << 20;
const modulesSchema = z.array(z.object({ path: z.string().max(256), type: z.string() }));
const poolingSchema = z.object({
  pooling_mode: z.string().optional(),
  pooling_mode_cls_token: z.boolean().optional(),
  pooling_mode_mean_tokens: z.boolean().optional(),
  pooling_mode_lasttoken: z.boolean().optional(),
});

/** Undefined: the folder states none. @throws ModelFileError for a pooling that is not supported */
export function statedPooling(folder: string): Pooling | undefined {
  const modulesFile = join(folder, 'modules.json');
  const json = readOptionalJson(modulesFile, bytesMax);
  if (json === undefined) return undefined;
  const found = validate(modulesFile, modulesSchema, json).find(({ type }) => /\.Pooling$/.test(type));
  if (found === undefined) return undefined;
  // The file must not be outside the folder.
  const path = normalize(found.path);
  if (path.startsWith('..') || path.startsWith(sep))
    throw new ModelFileError({ file: modulesFile, key: 'path', reason: 'a module lies outside the folder' });
  const file = join(folder, path, 'config.json');
  const settings = readOptionalJson(file, bytesMax);
  if (settings === undefined) throw new ModelFileError({ file, reason: 'the file is missing' });
  const modes = validate(file, poolingSchema, settings);
  const { pooling_mode: name, pooling_mode_cls_token: cls, pooling_mode_mean_tokens: mean } = modes;
  if (mean || name === 'mean') return 'mean';
  if (cls || name === 'cls') return 'cls';
  if (modes.pooling_mode_lasttoken || name === 'lasttoken') return 'last';
  throw new ModelFileError({
    file,
    reason: 'its pooling is not supported: known are cls_token, mean_tokens, lasttoken',
  });
}
