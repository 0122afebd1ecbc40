// From a reference to a path on this machine: out of the cache, or downloaded into it, by one process at a time.
import { readFileSync, statSync, utimesSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { z } from 'zod';
import { oneLine } from '../../util/one-line.ts';
import { RepositoryCache, sizeOf } from './cache.ts';
import { chooseFiles, type FileChoice, mainFile, weightsIndex } from './choose-files.ts';
import type { HubClient } from './client.ts';
import { downloadFile, freeBytes, noRoom } from './download-file.ts';
import { HubError, systemCode } from './errors.ts';
import { type Listing, listRepository, type RemoteFile } from './listing.ts';
import { FolderLock } from './lock.ts';
import { type HubReference, isCommit } from './reference.ts';

/** What happens on the way, for those who watch. */
export type PullEvent =
  /** Nothing is asked of the hub, because it cannot be reached. */
  | { readonly kind: 'cached-only'; readonly why: string }
  | { readonly kind: 'waiting'; readonly holder: string }
  | { readonly kind: 'started'; readonly files: number; readonly bytesTotal: number }
  /** Bytes of all these files that are here, resumed ones counted. */
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

/** What the cache holds of it, if that is a whole model. Asks nobody. */
export function findCached(cacheFolder: string, reference: HubReference): PulledModel | undefined {
  const cache = new RepositoryCache(cacheFolder, reference.id);
  const commit = cache.commitOf(reference.revision);
  if (commit === undefined) return undefined;
  try {
    const names = cache.snapshotFiles(commit);
    const choice = chooseFiles(names, reference);
    const files = filesOf(choice, cache, commit);
    return files.every((name) => names.includes(name)) ? pulled(cache, commit, choice, files) : undefined;
  } catch (error) {
    if (error instanceof HubError) return undefined;
    throw error;
  }
}

/**
 * The model on this machine, as the hub has it now; from the cache when it cannot be asked.
 * @throws HubError
 */
export async function pullModel(
  client: HubClient,
  reference: HubReference,
  onEvent: (event: PullEvent) => void,
): Promise<PulledModel> {
  const { cacheFolder, offline } = client.settings;
  const cached = findCached(cacheFolder, reference);
  // What a commit holds never changes.
  if (cached !== undefined && (offline || isCommit(reference.revision))) return used(cached);
  if (offline)
    throw new HubError(
      'missing',
      `Cannot use ${reference.text}: HF_HUB_OFFLINE is set, and it is not in ${cacheFolder}`,
    );
  let listing: Listing;
  try {
    listing = await listRepository(client, reference, cached === undefined ? listRetriesMax : 0);
  } catch (error) {
    if (cached === undefined || !(error instanceof HubError) || error.kind !== 'unreachable') throw error;
    onEvent({ kind: 'cached-only', why: error.message });
    return used(cached);
  }
  try {
    return used(await new Pull(client, reference, listing, onEvent).run());
  } catch (error) {
    if (error instanceof HubError && error.kind === 'interrupted')
      throw new HubError('interrupted', `Interrupted: ${reference.text} will be resumed from what is there`);
    if (error instanceof HubError || systemCode(error) === undefined) throw error;
    const why = error instanceof Error ? error.message : '';
    throw new HubError('disk', `Cannot download ${reference.text}: ${why}`);
  }
}

/** One repository's missing files, under its lock. */
class Pull {
  readonly #client: HubClient;
  readonly #reference: HubReference;
  readonly #listing: Listing;
  readonly #choice: FileChoice;
  readonly #cache: RepositoryCache;
  readonly #onEvent: (event: PullEvent) => void;
  /** Those fetched or being fetched, by hash. */
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
    if (!this.#isWhole()) {
      const { signal, sleep } = this.#client;
      const onWait = (holder: string): void => this.#onEvent({ kind: 'waiting', holder });
      const lock = await FolderLock.acquire(cache.lockFolder, { signal, sleep, onWait });
      try {
        // Another one may have done it meanwhile.
        if (!this.#isWhole()) await this.#download();
      } finally {
        await lock.release();
      }
    }
    await cache.writeRef(this.#reference.revision, commit);
    return pulled(cache, commit, this.#choice, filesOf(this.#choice, cache, commit));
  }

  #isWhole(): boolean {
    const needed = this.#choice.kind === 'gguf' ? this.#choice.files : this.#choice.metadata;
    if (this.#missing(needed).length > 0) return false;
    return this.#missing(filesOf(this.#choice, this.#cache, this.#listing.commit)).length === 0;
  }

  async #download(): Promise<void> {
    const choice = this.#choice;
    await mkdir(this.#cache.blobFolder, { recursive: true });
    // Small, and it names the others.
    if (choice.kind === 'folder' && choice.weights === undefined) await this.#fetchAll([weightsIndex], () => {});
    const files = this.#missing(filesOf(choice, this.#cache, this.#listing.commit));
    if (files.length === 0) return;
    await this.#checkRoom(files);
    this.#onEvent({ kind: 'started', files: files.length, bytesTotal: sum(files) });
    const bytesOf = new Map<string, number>();
    let total = 0;
    const onBytes = (path: string, bytes: number): void => {
      total += bytes - (bytesOf.get(path) ?? 0);
      bytesOf.set(path, bytes);
      this.#onEvent({ kind: 'bytes', bytes: total });
    };
    // Weights last: a snapshot that has them has the rest.
    const metadata = choice.kind === 'folder' ? choice.metadata : [];
    await this.#fetchAll(metadata, onBytes);
    await this.#fetchAll(
      files.map(({ path }) => path),
      onBytes,
    );
    this.#onEvent({ kind: 'finished' });
  }

  /** Fetches those that are missing, a few at a time. The first failure ends the others. */
  async #fetchAll(paths: readonly string[], onBytes: (path: string, bytes: number) => void): Promise<void> {
    const queue = this.#missing(paths);
    const ended = new AbortController();
    const client = this.#client.until(AbortSignal.any([this.#client.signal, ended.signal]));
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
    // Two files of the same content are one blob.
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
      onBytes: (bytes) => onBytes(file.path, bytes),
      onRetry: (reason, delayMs) => this.#onEvent({ kind: 'retrying', path: file.path, reason, delayMs }),
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

  async #checkRoom(files: readonly RemoteFile[]): Promise<void> {
    const needed = files.reduce((bytes, { bytes: whole, hash }) => {
      const here = sizeOf(this.#cache.blob(hash.hex)) ?? sizeOf(this.#cache.partial(hash.hex)) ?? 0;
      return bytes + Math.max(0, whole - here);
    }, 0);
    if (needed > (await freeBytes(this.#cache.blobFolder)))
      throw await noRoom(this.#reference, needed, this.#cache.blobFolder);
  }
}

function sum(files: readonly RemoteFile[]): number {
  return files.reduce((total, { bytes }) => total + bytes, 0);
}

/** Every file of the choice. An index must be in the snapshot already. @throws HubError when it is none */
function filesOf(choice: FileChoice, cache: RepositoryCache, commit: string): readonly string[] {
  if (choice.kind === 'gguf') return choice.files;
  return [...choice.metadata, ...(choice.weights ?? shardsOf(join(cache.snapshot(commit), weightsIndex)))];
}

function shardsOf(path: string): string[] {
  let index: z.infer<typeof indexSchema> | undefined;
  try {
    index = indexSchema.parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch {
    throw new HubError('corrupt', `Cannot read ${path}: it is no index of safetensors`);
  }
  const shards = [...new Set(Object.values(index.weight_map))];
  const outside = shards.find((shard) => shard !== basename(shard));
  if (outside !== undefined)
    throw new HubError('corrupt', `Cannot read ${path}: '${oneLine(outside, 120)}' is no plain file name`);
  return shards;
}

function pulled(cache: RepositoryCache, commit: string, choice: FileChoice, files: readonly string[]): PulledModel {
  const snapshot = cache.snapshot(commit);
  const bytes = files.reduce((total, name) => total + (sizeOf(join(snapshot, name)) ?? 0), 0);
  return { path: choice.kind === 'gguf' ? join(snapshot, mainFile(files)) : snapshot, commit, files, bytes };
}

/** Reading does not always move a file's time of access: what `models list` shows should. */
function used(model: PulledModel): PulledModel {
  const { path, files } = model;
  const main = files.some((name) => path.endsWith(`/${name}`)) ? path : join(path, 'config.json');
  try {
    utimesSync(main, new Date(), statSync(main).mtime);
  } catch {
    // A cache that is read-only serves as well.
  }
  return model;
}
