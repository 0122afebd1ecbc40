// Which files of a repository make the model that was asked for.
import { HubError } from './errors.ts';
import type { HubReference } from './reference.ts';

export type FileChoice =
  /** One GGUF file, or all the parts of a split one, first part first. */
  | { readonly kind: 'gguf'; readonly files: readonly string[] }
  /** A folder of safetensors. `weights` undefined: those that the index names. */
  | { readonly kind: 'folder'; readonly metadata: readonly string[]; readonly weights: readonly string[] | undefined };

export const weightsIndex = 'model.safetensors.index.json';
const singleWeights = 'model.safetensors';
/** What readers of a Hugging Face folder look at, beside the weights. */
const metadataPattern =
  /^((config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt|tokenizer\.model|chat_template[\w.-]*)$/;
const partPattern = /^(?<stem>.*)-(?<part>\d{5})-of-(?<parts>\d{5})\.gguf$/i;
const namesShownMax = 20;

/**
 * @param names every file of the repository, or of what is cached of it
 * @throws HubError (missing) when nothing fits, or more than one does
 */
export function chooseFiles(names: readonly string[], reference: HubReference): FileChoice {
  const models = ggufModels(names);
  if (reference.file !== undefined) return named(models, names, reference, reference.file);
  if (names.includes('config.json') && (names.includes(singleWeights) || names.includes(weightsIndex))) {
    const metadata = names.filter((name) => metadataPattern.test(name));
    // A reader prefers the single file, so the index and its shards would be for nothing.
    if (names.includes(singleWeights)) return { kind: 'folder', metadata, weights: [singleWeights] };
    return { kind: 'folder', metadata: [...metadata, weightsIndex], weights: undefined };
  }
  const [only, ...others] = models;
  if (only === undefined)
    throw missing(reference, 'the repository has no GGUF file, and no config.json with model.safetensors');
  if (others.length > 0) {
    const example = `${reference.id}:${mainFile(only)}`;
    throw missing(reference, `name one of its ${models.length} GGUF models, as in ${example}: ${shown(models)}`);
  }
  return { kind: 'gguf', files: only };
}

function named(
  models: readonly (readonly string[])[],
  names: readonly string[],
  reference: HubReference,
  file: string,
): FileChoice {
  const exact = models.find((parts) => parts.includes(file));
  if (exact !== undefined) return { kind: 'gguf', files: exact };
  if (names.includes(file)) throw missing(reference, `${file} is no whole GGUF model`);
  // `Q4_K` must not mean `Q4_K_M`, nor `4_0` mean `Q4_0`.
  const quantisation = new RegExp(`(^|[-./_])${file.replace(/[^\w/-]/g, '\\$&')}([-./]|$)`, 'i');
  const fitting = models.filter((parts) => quantisation.test(mainFile(parts).replace(/\.gguf$/i, '')));
  const [only, ...others] = fitting;
  if (only !== undefined && others.length === 0) return { kind: 'gguf', files: only };
  if (only !== undefined) throw missing(reference, `more than one name holds '${file}': ${shown(fitting)}`);
  throw missing(reference, `the repository has no '${file}'; its GGUF models: ${shown(models)}`);
}

/** Each model as its files in order: one, or the parts of a split one if all are there. */
function ggufModels(names: readonly string[]): (readonly string[])[] {
  const models = new Map<string, string[]>();
  for (const name of names.toSorted()) {
    // A projector of images is no model of its own.
    if (!/\.gguf$/i.test(name) || /(^|\/)mmproj/i.test(name)) continue;
    const { stem, parts } = partPattern.exec(name)?.groups ?? {};
    const key = stem === undefined ? name : `${stem} of ${parts}`;
    models.set(key, [...(models.get(key) ?? []), name]);
  }
  return [...models.values()].filter(
    (files) => files.length === Number(partPattern.exec(mainFile(files))?.groups?.parts ?? 1),
  );
}

export function mainFile(files: readonly string[]): string {
  return files[0] ?? '';
}

function shown(models: readonly (readonly string[])[]): string {
  if (models.length === 0) return 'none';
  const names = models.slice(0, namesShownMax).map(mainFile).join(', ');
  return models.length > namesShownMax ? `${names} and ${models.length - namesShownMax} more` : names;
}

function missing(reference: HubReference, why: string): HubError {
  return new HubError('missing', `Cannot use ${reference.text}: ${why}`);
}
