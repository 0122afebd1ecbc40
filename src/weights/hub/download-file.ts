// One file into the cache's blobs: resumed where it was cut, never beyond its size, renamed only once its hash is right.
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open, rename, rm, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { RepositoryCache } from './cache.ts';
import type { HubClient, HubStream } from './client.ts';
import { HubError, systemCode } from './errors.ts';
import type { RemoteFile } from './listing.ts';
import type { HubReference } from './reference.ts';
import { TransientError, withRetries } from './retry.ts';

const retriesMax = 5;
const readBytes = 2 ** 20;

export interface FileDownload {
  readonly client: HubClient;
  readonly reference: HubReference;
  readonly cache: RepositoryCache;
  readonly commit: string;
  readonly file: RemoteFile;
  /** Bytes of the file that are here now; falls when it starts anew. */
  readonly onBytes: (bytes: number) => void;
  readonly onRetry: (reason: string, delayMs: number) => void;
}

/** @throws HubError; what can be resumed stays */
export async function downloadFile(download: FileDownload): Promise<void> {
  const { cache, file, reference } = download;
  const path = cache.partial(file.hash.hex);
  const partial = new PartialFile(await open(path, constants.O_RDWR | constants.O_CREAT, 0o644), file);
  try {
    for (let tries = 1; ; tries++) {
      await fill(partial, download);
      if (partial.digest() === file.hash.hex) break;
      await partial.restart();
      if (tries === 2) {
        const why = `what came has another hash than the ${file.hash.kind} ${file.hash.hex} that the hub lists, twice`;
        throw new HubError('corrupt', `Cannot download ${reference.text}: ${file.path}: ${why}`);
      }
    }
    await partial.sync();
  } catch (error) {
    if (partial.bytes === 0) await rm(path, { force: true });
    throw await diskError(error, path, download, partial.bytes);
  } finally {
    await partial.close();
  }
  await rename(path, cache.blob(file.hash.hex));
}

async function fill(partial: PartialFile, download: FileDownload): Promise<void> {
  const { client, file, reference, onBytes, onRetry } = download;
  const { signal, sleep } = client;
  await partial.load(signal);
  onBytes(partial.bytes);
  let most = partial.bytes;
  const progressed = (): boolean => {
    // Beginning anew is none, or a hub that never sends the last byte would keep us for ever.
    const more = partial.bytes > most;
    most = Math.max(most, partial.bytes);
    return more;
  };
  const what = `Cannot download ${reference.text}: ${file.path}`;
  await withRetries(what, { retriesMax, signal, sleep, progressed, onRetry }, async () => {
    if (partial.bytes === file.bytes) return;
    await receive(partial, download);
    if (partial.bytes < file.bytes)
      throw new TransientError(`the connection was cut at ${partial.bytes} of ${file.bytes} bytes`);
  });
}

async function receive(partial: PartialFile, download: FileDownload): Promise<void> {
  const { client, file, reference, commit, onBytes } = download;
  const path = file.path.split('/').map(encodeURIComponent).join('/');
  const url = `${client.settings.endpoint}/${reference.id}/resolve/${commit}/${path}`;
  const range: Record<string, string> = partial.bytes > 0 ? { range: `bytes=${partial.bytes}-` } : {};
  const stream = await client.stream(url, reference, range);
  try {
    checkPromises(stream, download);
    // A server without ranges sends all of it.
    if (startOf(stream) !== partial.bytes) await partial.restart();
    if (startOf(stream) !== partial.bytes) throw new TransientError(`a range began at ${startOf(stream)}`);
    for await (const chunk of stream.chunks) {
      if (partial.bytes + chunk.byteLength > file.bytes) {
        await partial.restart();
        throw lied(download, `more than the ${file.bytes} bytes that the hub lists`);
      }
      await partial.append(chunk);
      onBytes(partial.bytes);
    }
  } finally {
    stream.close();
  }
}

function startOf({ status, headers }: HubStream): number {
  return status === 206 ? Number(/^bytes (\d+)-/.exec(headers.get('content-range') ?? '')?.[1] ?? 0) : 0;
}

/** The whole's size and hash, as far as the answer tells them, are those of the list. */
function checkPromises({ status, headers }: HubStream, download: FileDownload): void {
  const { file } = download;
  const total =
    status === 206 ? /\/(\d+)$/.exec(headers.get('content-range') ?? '')?.[1] : headers.get('content-length');
  if (total !== null && total !== undefined && Number(total) !== file.bytes)
    throw lied(download, `${total} bytes where the hub lists ${file.bytes}`);
  // Of hosts that files are redirected to, the tag is anything; a hub's own is the hash.
  const tag = headers.get('x-linked-etag')?.replace(/^W\/|"/g, '');
  if (tag !== undefined && tag.length === file.hash.hex.length && tag !== file.hash.hex)
    throw lied(download, `content ${tag} where the hub lists ${file.hash.hex}`);
}

function lied({ reference, file }: FileDownload, what: string): HubError {
  return new HubError('corrupt', `Cannot download ${reference.text}: ${file.path}: the server sends ${what}`);
}

/** A full disk in words; anything else as it is. */
async function diskError(error: unknown, path: string, download: FileDownload, bytes: number): Promise<unknown> {
  const code = error instanceof HubError ? undefined : systemCode(error);
  if (code !== 'ENOSPC' && code !== 'EDQUOT') return error;
  const { reference, file } = download;
  return noRoom(reference, file.bytes - bytes, dirname(path));
}

/** @param bytesNeeded for what is still to come */
export async function noRoom(reference: HubReference, bytesNeeded: number, folder: string): Promise<HubError> {
  const why = `the disk is full: ${bytesNeeded} more bytes needed, ${await freeBytes(folder)} free in ${folder}`;
  return new HubError('disk', `Cannot download ${reference.text}: ${why}; what is there will be resumed`);
}

export async function freeBytes(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize;
}

/** The file that fills, and the hash of what is in it. */
class PartialFile {
  readonly #handle: FileHandle;
  readonly #file: RemoteFile;
  #hash: Hash;
  #bytes = 0;

  constructor(handle: FileHandle, file: RemoteFile) {
    this.#handle = handle;
    this.#file = file;
    this.#hash = begin(file);
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Takes what an earlier process left, unless this one has read it already. */
  async load(signal: AbortSignal): Promise<void> {
    if (this.#bytes > 0) return;
    const { size } = await this.#handle.stat();
    if (size > this.#file.bytes) return this.restart();
    const buffer = Buffer.allocUnsafe(Math.min(readBytes, size));
    while (this.#bytes < size && !signal.aborted) {
      const { bytesRead } = await this.#handle.read(buffer, 0, buffer.byteLength, this.#bytes);
      if (bytesRead === 0) break;
      this.#hash.update(buffer.subarray(0, bytesRead));
      this.#bytes += bytesRead;
    }
  }

  async append(chunk: Uint8Array): Promise<void> {
    for (let done = 0; done < chunk.byteLength; ) {
      const { bytesWritten } = await this.#handle.write(chunk, done, chunk.byteLength - done, this.#bytes);
      this.#hash.update(chunk.subarray(done, done + bytesWritten));
      this.#bytes += bytesWritten;
      done += bytesWritten;
    }
  }

  async restart(): Promise<void> {
    if ((await this.#handle.stat()).size > 0) await this.#handle.truncate(0);
    this.#hash = begin(this.#file);
    this.#bytes = 0;
  }

  digest(): string {
    return this.#hash.copy().digest('hex');
  }

  async sync(): Promise<void> {
    await this.#handle.sync();
  }

  async close(): Promise<void> {
    await this.#handle.close();
  }
}

/** Git hashes a blob with its size in front. */
function begin({ hash, bytes }: RemoteFile): Hash {
  return hash.kind === 'sha256' ? createHash('sha256') : createHash('sha1').update(`blob ${bytes}\0`);
}
