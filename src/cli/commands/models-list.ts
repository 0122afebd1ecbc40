// `kvasir models list`: the models of a folder, or the embedded model and the hub cache.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { type CachedRepository, cachedRepositories } from '../../weights/hub/cached-repositories.ts';
import { hubSettings } from '../../weights/hub/settings.ts';
import { openModel } from '../../weights/open-model.ts';
import { embeddedModel } from '../package-root.ts';
import { tensorBytes, unservable } from '../serve/model/model-facts.ts';
import { megabytes } from '../terminal/fields.ts';
import { UsageError } from '../usage-error.ts';

interface ListedModel {
  readonly path: string;
  readonly architecture?: string;
  readonly context?: number;
  readonly bytes?: number;
  readonly error?: string;
}

/** Exit code 1 if a model cannot be served. @throws UsageError if the folder does not exist */
export function listFolder(folder: string, json: boolean): void {
  if (!existsSync(folder)) throw new UsageError(`Cannot list models: there is no folder ${folder}`);
  const models = modelPaths(folder).map(describe);
  if (models.some(({ error }) => error !== undefined)) process.exitCode = 1;
  if (json) {
    console.log(JSON.stringify({ models }));
    return;
  }
  for (const model of models) console.log(`${model.path}: ${facts(model)}`);
  if (models.length === 0) console.log(`No models in ${folder}`);
}

export function listMachine(json: boolean): void {
  const { cacheFolder } = hubSettings(process.env);
  const embedded = describe(embeddedModel);
  const repositories = cachedRepositories(cacheFolder).map((repository) => ({
    ...repository,
    snapshots: repository.snapshots.map((snapshot) => ({
      ...snapshot,
      models: modelPaths(snapshot.path).map(describe),
    })),
  }));
  if (json) {
    console.log(JSON.stringify({ models: [embedded], cache: { folder: cacheFolder, repositories } }));
    return;
  }
  console.log(`${embedded.path}: ${facts(embedded)}`);
  console.log(`\nCache ${cacheFolder}${repositories.length === 0 ? ': empty' : ''}`);
  for (const repository of repositories) {
    console.log(`${repository.id}: ${sizes(repository)}`);
    for (const { commit, revisions, path, files, models } of repository.snapshots) {
      const names = revisions.length === 0 ? '' : `${revisions.join(', ')} = `;
      console.log(`  ${names}${commit.slice(0, 8)}: ${files.length === 1 ? '1 file' : `${files.length} files`}`);
      for (const model of models) console.log(`    ${model.path.slice(path.length + 1) || 'model'}: ${facts(model)}`);
    }
  }
}

function sizes({ bytes, incompleteBytes, lastUsedMs }: CachedRepository): string {
  const incomplete = incompleteBytes === 0 ? '' : `, ${megabytes(incompleteBytes)} of it incomplete`;
  const used = lastUsedMs === 0 ? '' : `, last used ${new Date(lastUsedMs).toISOString().slice(0, 10)}`;
  return `${megabytes(bytes)}${incomplete}${used}`;
}

function modelPaths(folder: string): string[] {
  const inside = readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    return isFolder(path) ? [path, ...readdirSync(path).map((inner) => join(path, inner))] : [path];
  });
  return [folder, ...inside].filter((path) =>
    isFolder(path) ? existsSync(join(path, 'config.json')) && hasWeights(path) : path.endsWith('.gguf'),
  );
}

/** A folder of GGUF files may contain a config.json. */
function hasWeights(folder: string): boolean {
  return readdirSync(folder).some((name) => name.endsWith('.safetensors')) || !holdsGguf(folder);
}

function holdsGguf(folder: string): boolean {
  return readdirSync(folder).some((name) => name.endsWith('.gguf'));
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}

function describe(path: string): ListedModel {
  try {
    const files = openModel(path);
    try {
      const error = unservable(files);
      if (error !== undefined) return { path, error };
      const { architecture, maxPositions } = files.config;
      return { path, architecture, context: maxPositions, bytes: tensorBytes(files) };
    } finally {
      files.close();
    }
  } catch (error) {
    return { path, error: error instanceof Error ? error.message : String(error) };
  }
}

function facts({ architecture, context, bytes = 0, error }: ListedModel): string {
  return error ?? `${architecture}, context ${context}, ${megabytes(bytes)}`;
}
