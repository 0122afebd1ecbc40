// Resolves a reference to a local path: from the cache, or downloaded into it by one process at a time.
import { readFileSync, statSync, utimesSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { z } from 'zod';
import { oneLine } from '../../util/one-line.ts';
import { RepositoryCache, sizeOf } from './cache.ts';
import { chooseFiles, type FileChoice, mainFile, weightsIndex } from './choose-files.ts';
import type { HubClient } from './client.ts';
import { diskFullError, downloadFile, freeBytes } from './download-file.ts';
import { HubError, systemCode } from './errors.ts';
import { type Listing, listRepository, type RemoteFile } from './listing.ts';
import { FolderLock } from './lock.ts';
import { type HubReference, isCommit } from './reference.ts';

/** Progress of a pull. */
export type PullEvent =
  /** The hub is unreachable; the cached model is used. */
  | { readonly kind: 'cached-only'; readonly why: string }
  | { readonly kind: 'waiting'; readonly holder: string }
  | { readonly kind: 'started'; readonly files: number; readonly bytesTotal: number }
  /** Bytes of these files that are present, resumed bytes included. */
  | { readonly kind: 'bytes'; readonly bytes: number }
  | { readonly kind: 'retrying'; readonly path: string; readonly reason: string; readonly delayMs: number }
  | { readonly kind: 'finished' };

export interface PulledModel {
  /** GGUF file or Hugging Face folder. */
  readonly path: string;
  readonly commit: string;
  readonly files: readonly string[];
  readonly bytes: number;
}

const filesAtOnce = 4;
const listRetriesMax = 3;
const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

/** The cached model, if it is complete. Sends no request. */
export function findCached(cacheFolder: string, reference: HubReference): PulledModel | undefined {
  const cache = new RepositoryCache(cacheFolder, reference.id);
  const commit = cache.commitOf(reference.revision);
  if (commit === undefined) return undefined;
  try {
    const names = cache.snapshotFiles(commit);
    const choice = chooseFiles(names, reference);
    const files = filesOf(choice, cache, commit);
    return files.every((name) => names.includes(name)) ? pulledModel(cache, commit, choice, files) : undefined;
  } catch (error) {
    if (error instanceof HubError) return undefined;
    throw error;
  }
}

/**
 * The model on this machine, as the hub has it now; the cached one when the hub is unreachable.
 * @throws HubError
 */
export async function pullModel(
  client: HubClient,
  reference: HubReference,
  onEvent: (event: PullEvent) => void,
): Promise<PulledModel> {
  const { cacheFolder, offline } = client.settings;
  const cached = findCached(cacheFolder, reference);
  // The content of a commit never changes.
  if (cached !== undefined && (offline || isCommit(reference.revision))) return markUsed(cached);
  if (offline)
    throw new HubError(
      'missing',
      `Cannot use ${reference.text}: HF_HUB_OFFLINE is set and the model is not in ${cacheFolder}`,
    );
  let listing: Listing;
  try {
    listing = await listRepository(client, reference, cached === undefined ? listRetriesMax : 0);
  } catch (error) {
    if (cached === undefined || !(error instanceof HubError) || error.kind !== 'unreachable') throw error;
    onEvent({ kind: 'cached-only', why: error.message });
    return markUsed(cached);
  }
  try {
    return markUsed(await new Pull(client, reference, listing, onEvent).run());
  } catch (error) {
    if (error instanceof HubError && error.kind === 'interrupted')
      throw new HubError('interrupted', `Interrupted: the next pull resumes ${reference.text}`);
    if (error instanceof HubError || systemCode(error) === undefined) throw error;
    const why = error instanceof Error ? error.message : '';
    throw new HubError('disk', `Cannot download ${reference.text}: ${why}`);
  }
}

/** Downloads one repository's missing files under its lock. */
class Pull {
  readonly #client: HubClient;
  readonly #reference: HubReference;
  readonly #listing: Listing;
  readonly #choice: FileChoice;
  readonly #cache: RepositoryCache;
  readonly #onEvent: (event: PullEvent) => void;
  /** Downloads, finished or running, by hash. */
  readonly #blobs = new Map<string, Promise<void>>();

  constructor(client: HubClient, reference: HubReference, listing: Listing, onEvent: (event: PullEvent) => void) {
    this.#client = client;
    this.#reference = reference;
    this.#listing = listing;
    this.#choice = chooseFiles([...listing.files.keys()], reference);
    this.#cache = new RepositoryCache(client.settings.cacheFolder, reference.id);
    this.#onEvent = onEvent;
  }

  async run(): Promise<PulledModel> {
    const cache = this.#cache;
    const { commit } = this.#listing;
    if (!this.#isComplete()) {
      const onWait = (holder: string): void => this.#onEvent({ kind: 'waiting', holder });
      const lock = await FolderLock.acquire(cache.lockFolder, this.#client, { onWait });
      try {
        // Another process may have downloaded it in the meantime.
        if (!this.#isComplete()) await this.#download();
      } finally {
        await lock.release();
      }
    }
    await cache.writeRef(this.#reference.revision, commit);
    return pulledModel(cache, commit, this.#choice, filesOf(this.#choice, cache, commit));
  }

  #isComplete(): boolean {
    const needed = this.#choice.kind === 'gguf' ? this.#choice.files : this.#choice.metadata;
    if (this.#missing(needed).length > 0) return false;
    return this.#missing(filesOf(this.#choice, this.#cache, this.#listing.commit)).length === 0;
  }

  async #download(): Promise<void> {
    const choice = this.#choice;
    await mkdir(this.#cache.blobFolder, { recursive: true });
    // The index is small and names the other files.
    if (choice.kind === 'folder' && choice.weights === undefined) await this.#fetchAll([weightsIndex], () => {});
    const files = this.#missing(filesOf(choice, this.#cache, this.#listing.commit));
    if (files.length === 0) return;
    await this.#checkFreeSpace(files);
    this.#onEvent({ kind: 'started', files: files.length, bytesTotal: sum(files) });
    const bytesOf = new Map<string, number>();
    let total = 0;
    const onBytes = (path: string, bytes: number): void => {
      total += bytes - (bytesOf.get(path) ?? 0);
      bytesOf.set(path, bytes);
      this.#onEvent({ kind: 'bytes', bytes: total });
    };
    // Weights come last: a snapshot that has them is complete.
    const metadata = choice.kind === 'folder' ? choice.metadata : [];
    await this.#fetchAll(metadata, onBytes);
    await this.#fetchAll(
      files.map(({ path }) => path),
      onBytes,
    );
    this.#onEvent({ kind: 'finished' });
  }

  /** Downloads the missing files, a few at a time. The first failure ends the others. */
  async #fetchAll(paths: readonly string[], onBytes: (path: string, bytes: number) => void): Promise<void> {
    const queue = this.#missing(paths);
    const ended = new AbortController();
    const client = this.#client.withSignal(AbortSignal.any([this.#client.signal, ended.signal]));
    const failures: unknown[] = [];
    const worker = async (): Promise<void> => {
      try {
        for (let file = queue.shift(); file !== undefined; file = queue.shift())
          await this.#fetch(client, file, onBytes);
      } catch (error) {
        failures.push(error);
        queue.length = 0;
        ended.abort();
      }
    };
    await Promise.all(Array.from({ length: filesAtOnce }, worker));
    if (failures.length > 0) throw failures[0];
  }

  async #fetch(client: HubClient, file: RemoteFile, onBytes: (path: string, bytes: number) => void): Promise<void> {
    const { path, bytes, hash } = file;
    // Two files of equal content share one blob.
    let blob = this.#blobs.get(hash.hex);
    if (blob === undefined) {
      blob = this.#fetchBlob(client, file, onBytes);
      this.#blobs.set(hash.hex, blob);
    }
    await blob;
    onBytes(path, bytes);
    await this.#cache.link(this.#listing.commit, path, hash.hex);
  }

  async #fetchBlob(client: HubClient, file: RemoteFile, onBytes: (path: string, bytes: number) => void): Promise<void> {
    if (sizeOf(this.#cache.blob(file.hash.hex)) === file.bytes) return;
    await downloadFile({
      client,
      reference: this.#reference,
      cache: this.#cache,
      commit: this.#listing.commit,
      file,
      observer: {
        onBytes: (bytes) => onBytes(file.path, bytes),
        onRetry: (reason, delayMs) => this.#onEvent({ kind: 'retrying', path: file.path, reason, delayMs }),
      },
    });
  }

  #missing(paths: readonly string[]): RemoteFile[] {
    return paths.flatMap((path) => {
      const file = this.#listing.files.get(path);
      if (file === undefined)
        throw new HubError(
          'corrupt',
          `Cannot use ${this.#reference.text}: ${weightsIndex} names ${path}, which the hub does not list`,
        );
      return this.#cache.holds(this.#listing.commit, path, file.bytes) ? [] : [file];
    });
  }

  async #checkFreeSpace(files: readonly RemoteFile[]): Promise<void> {
    const needed = files.reduce((bytes, { bytes: whole, hash }) => {
      const here = sizeOf(this.#cache.blob(hash.hex)) ?? sizeOf(this.#cache.partial(hash.hex)) ?? 0;
      return bytes + Math.max(0, whole - here);
    }, 0);
    if (needed > (await freeBytes(this.#cache.blobFolder)))
      throw await diskFullError(this.#reference, needed, this.#cache.blobFolder);
  }
}

function sum(files: readonly RemoteFile[]): number {
  return files.reduce((total, { bytes }) => total + bytes, 0);
}

/** Every file of the choice. The snapshot must hold the index. @throws HubError when the index is invalid */
function filesOf(choice: FileChoice, cache: RepositoryCache, commit: string): readonly string[] {
  if (choice.kind === 'gguf') return choice.files;
  return [...choice.metadata, ...(choice.weights ?? shardsOf(join(cache.snapshot(commit), weightsIndex)))];
}

function shardsOf(path: string): string[] {
  let index: z.infer<typeof indexSchema> | undefined;
  try {
    index = indexSchema.parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch {
    throw new HubError('corrupt', `Cannot read ${path}: it is not a safetensors index`);
  }
  const shards = [...new Set(Object.values(index.weight_map))];
  const outside = shards.find((shard) => shard !== basename(shard));
  if (outside !== undefined)
    throw new HubError('corrupt', `Cannot read ${path}: '${oneLine(outside, 120)}' is not a plain file name`);
  return shards;
}

function pulledModel(
  cache: RepositoryCache,
  commit: string,
  choice: FileChoice,
  files: readonly string[],
): PulledModel {
  const snapshot = cache.snapshot(commit);
  const bytes = files.reduce((total, name) => total + (sizeOf(join(snapshot, name)) ?? 0), 0);
  return { path: choice.kind === 'gguf' ? join(snapshot, mainFile(files)) : snapshot, commit, files, bytes };
}

/** Sets the access time that `models list` shows; not every file system updates it on a read. */
function markUsed(model: PulledModel): PulledModel {
  const { path, files } = model;
  const main = files.some((name) => path.endsWith(`/${name}`)) ? path : join(path, 'config.json');
  try {
    utimesSync(main, new Date(), statSync(main).mtime);
  } catch {
    // A read-only cache is fine.
  }
  return model;
}
