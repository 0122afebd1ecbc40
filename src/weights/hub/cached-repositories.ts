// Lists what the cache holds and removes parts of it.
import { existsSync, lstatSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { basename, dirname, join, sep } from 'node:path';
import { pathsBelow, RepositoryCache } from './cache.ts';
import { chooseFiles } from './choose-files.ts';
import { HubError } from './errors.ts';
import { FolderLock } from './lock.ts';
import type { HubReference } from './reference.ts';

export interface CachedSnapshot {
  readonly commit: string;
  readonly path: string;
  /** Branches and tags that pointed to it at the last contact with the hub. */
  readonly revisions: readonly string[];
  readonly files: readonly string[];
  readonly bytes: number;
}

export interface CachedRepository {
  /** `org/name` */
  readonly id: string;
  readonly path: string;
  /** Bytes on disk: shared blobs count once, partial downloads are included. */
  readonly bytes: number;
  /** Bytes of partial downloads. */
  readonly incompleteBytes: number;
  readonly lastUsedMs: number;
  readonly snapshots: readonly CachedSnapshot[];
}

/** What a removal deletes. */
export interface Removal {
  readonly reference: HubReference;
  readonly paths: readonly string[];
  readonly bytes: number;
}

export function cachedRepositories(cacheFolder: string): CachedRepository[] {
  if (!existsSync(cacheFolder)) return [];
  return readdirSync(cacheFolder, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && entry.name.startsWith('models--'))
    .map((entry) => describeRepository(cacheFolder, entry.name.slice('models--'.length).replace('--', '/')));
}

function describeRepository(cacheFolder: string, id: string): CachedRepository {
  const cache = new RepositoryCache(cacheFolder, id);
  const blobs = filesBelow(cache.blobFolder);
  const snapshots = snapshotsOf(cache);
  const contents = new Set([
    ...blobs,
    ...snapshots.flatMap(({ path, files }) => files.map((name) => realpathSync(join(path, name)))),
  ]);
  return {
    id,
    path: cache.folder,
    bytes: bytesOf(contents),
    incompleteBytes: bytesOf(blobs.filter((path) => path.endsWith('.incomplete'))),
    lastUsedMs: Math.max(0, ...[...contents].map((path) => statSync(path).atimeMs)),
    snapshots,
  };
}

function snapshotsOf(cache: RepositoryCache): CachedSnapshot[] {
  const root = dirname(cache.snapshot('any'));
  if (!existsSync(root)) return [];
  const refs = refsOf(cache);
  const commits = readdirSync(root, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return commits.map(({ name: commit }) => {
    const path = cache.snapshot(commit);
    const files = cache.snapshotFiles(commit);
    const revisions = [...refs].filter(([, target]) => target === commit).map(([name]) => name);
    return { commit, path, revisions, files, bytes: bytesOf(files.map((name) => join(path, name))) };
  });
}

/** Commit of each branch and tag in the cache. */
function refsOf(cache: RepositoryCache): Map<string, string> {
  const root = join(cache.folder, 'refs');
  const names = filesBelow(root).map((path) => path.slice(root.length + 1).replaceAll(sep, '/'));
  return new Map(names.map((name) => [name, readFileSync(join(root, name), 'utf8').trim()]));
}

/**
 * `org/name` removes the repository; with a revision its snapshot; with a file that file. Blobs without other links go
 * too.
 * @throws HubError (missing) when the cache holds none of it
 */
export function planRemoval(cacheFolder: string, reference: HubReference): Removal {
  const cache = new RepositoryCache(cacheFolder, reference.id);
  const missing = new HubError('missing', `Cannot remove ${reference.text}: it is not in ${cacheFolder}`);
  if (reference.text === reference.id) {
    if (!existsSync(cache.folder)) throw missing;
    return { reference, paths: [cache.folder], bytes: bytesOf(filesBelow(cache.folder)) };
  }
  const commit = cache.commitOf(reference.revision);
  if (commit === undefined || !existsSync(cache.snapshot(commit))) throw missing;
  const names = cache.snapshotFiles(commit);
  const choice = reference.file === undefined ? undefined : chooseFiles(names, reference);
  const removed = choice?.kind === 'gguf' ? choice.files : names;
  const entries = removed.map((name) => join(cache.snapshot(commit), name));
  const contents = unsharedContents(cache, entries);
  const all = removed.length === names.length;
  const outer = all ? [cache.snapshot(commit), ...refPaths(cache, commit)] : entries;
  return { reference, paths: [...outer, ...contents], bytes: bytesOf(contents) };
}

/** Contents that these entries link to and no other entry does. */
function unsharedContents(cache: RepositoryCache, entries: readonly string[]): string[] {
  const kept = new Set(snapshotsOf(cache).flatMap(({ path, files }) => files.map((name) => join(path, name))));
  for (const entry of entries) kept.delete(entry);
  const linked = new Set([...kept].map((path) => realpathSync(path)));
  const own = realpathSync(cache.folder) + sep;
  const contents = new Set(entries.map((path) => realpathSync(path)));
  // A link may point anywhere. Only contents inside the repository's folder are removed.
  return [...contents].filter((path) => !linked.has(path) && path.startsWith(own));
}

function refPaths(cache: RepositoryCache, commit: string): string[] {
  return [...refsOf(cache)].filter(([, target]) => target === commit).map(([name]) => join(cache.folder, 'refs', name));
}

/** @throws HubError (busy) while another process downloads into the repository */
export async function remove(cacheFolder: string, { reference, paths }: Removal): Promise<void> {
  const lock = await FolderLock.tryAcquire(new RepositoryCache(cacheFolder, reference.id).lockFolder);
  if (!(lock instanceof FolderLock))
    throw new HubError('busy', `Cannot remove ${reference.text}: ${lock} is downloading into it`);
  try {
    for (const path of paths) await rm(path, { recursive: true, force: true });
  } finally {
    await lock.release();
  }
}

/** Paths of the regular files below a folder. */
function filesBelow(folder: string): string[] {
  if (!existsSync(folder)) return [];
  const paths = pathsBelow(folder).map((name) => join(folder, name));
  return paths.filter((path) => lstatSync(path).isFile() && basename(path) !== '.DS_Store');
}

function bytesOf(paths: Iterable<string>): number {
  let bytes = 0;
  for (const path of paths) bytes += statSync(path, { throwIfNoEntry: false })?.size ?? 0;
  return bytes;
}
