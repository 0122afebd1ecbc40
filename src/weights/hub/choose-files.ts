// Chooses the files of a repository that make up the requested model.
import { HubError } from './errors.ts';
import type { HubReference } from './reference.ts';

export type FileChoice =
  /** One GGUF file, or all parts of a split model, first part first. */
  | { readonly kind: 'gguf'; readonly files: readonly string[] }
  /** A folder of safetensors files. `weights` undefined: the files that the index names. */
  | { readonly kind: 'folder'; readonly metadata: readonly string[]; readonly weights: readonly string[] | undefined };

export const weightsIndex = 'model.safetensors.index.json';
const singleWeights = 'model.safetensors';
/** Files of a Hugging Face folder that are read, besides the weights. */
const metadataPattern =
  /^((config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|modules)\.json|\w*Pooling\/config\.json|merges\.txt|tokenizer\.model|chat_template[\w.-]*)$/;
const partPattern = /^(?<stem>.*)-(?<part>\d{5})-of-(?<parts>\d{5})\.gguf$/i;
const namesShownMax = 20;

/**
 * @param names all files of the repository or of its cached snapshot
 * @throws HubError (missing) when no file matches or several do
 */
export function chooseFiles(names: readonly string[], reference: HubReference): FileChoice {
  const models = ggufModels(names);
  if (reference.file !== undefined) return chooseNamed(models, names, reference, reference.file);
  if (names.includes('config.json') && (names.includes(singleWeights) || names.includes(weightsIndex))) {
    const metadata = names.filter((name) => metadataPattern.test(name));
    // The loader prefers the single file, so the index and its shards are not needed.
    if (names.includes(singleWeights)) return { kind: 'folder', metadata, weights: [singleWeights] };
    return { kind: 'folder', metadata: [...metadata, weightsIndex], weights: undefined };
  }
  const [only, ...others] = models;
  if (only === undefined)
    throw missing(reference, 'the repository has no GGUF file, and no config.json with model.safetensors');
  if (others.length > 0) {
    const example = `${reference.id}:${mainFile(only)}`;
    throw missing(reference, `name one of its ${models.length} GGUF models, as in ${example}: ${listNames(models)}`);
  }
  return { kind: 'gguf', files: only };
}

function chooseNamed(
  models: readonly (readonly string[])[],
  names: readonly string[],
  reference: HubReference,
  file: string,
): FileChoice {
  const exact = models.find((parts) => parts.includes(file));
  if (exact !== undefined) return { kind: 'gguf', files: exact };
  if (names.includes(file)) throw missing(reference, `${file} is not a complete GGUF model`);
  // Match whole parts: `Q4_K` does not match `Q4_K_M`, nor `4_0` match `Q4_0`.
  const quantisation = new RegExp(`(^|[-./_])${file.replace(/[^\w/-]/g, '\\$&')}([-./]|$)`, 'i');
  const fitting = models.filter((parts) => quantisation.test(mainFile(parts).replace(/\.gguf$/i, '')));
  const [only, ...others] = fitting;
  if (only !== undefined && others.length === 0) return { kind: 'gguf', files: only };
  if (only !== undefined) throw missing(reference, `several names contain '${file}': ${listNames(fitting)}`);
  throw missing(reference, `the repository has no '${file}'; its GGUF models: ${listNames(models)}`);
}

/** Each model's files in order: a single file, or the parts of a split model if none is missing. */
function ggufModels(names: readonly string[]): (readonly string[])[] {
  const models = new Map<string, string[]>();
  for (const name of names.toSorted()) {
    // An image projector (mmproj) is not a model of its own.
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

function listNames(models: readonly (readonly string[])[]): string {
  if (models.length === 0) return 'none';
  const names = models.slice(0, namesShownMax).map(mainFile).join(', ');
  return models.length > namesShownMax ? `${names} and ${models.length - namesShownMax} more` : names;
}

function missing(reference: HubReference, why: string): HubError {
  return new HubError('missing', `Cannot use ${reference.text}: ${why}`);
}
