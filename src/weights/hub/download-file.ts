// Downloads one file into the cache's blobs: resumes partial files, never exceeds the listed size, renames after the
// hash matches.
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open, rename, rm, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { RepositoryCache } from './cache.ts';
import type { HubClient, HubStream } from './client.ts';
import { HubError, systemCode } from './errors.ts';
import type { RemoteFile } from './listing.ts';
import type { HubReference } from './reference.ts';
import { type RetryPolicy, TransientError, withRetries } from './retry.ts';

const retriesMax = 5;
const readBytes = 2 ** 20;

export interface FileDownload {
  readonly client: HubClient;
  readonly reference: HubReference;
  readonly cache: RepositoryCache;
  readonly commit: string;
  readonly file: RemoteFile;
  readonly observer: DownloadObserver;
}

export interface DownloadObserver extends Required<Pick<RetryPolicy, 'onRetry'>> {
  /** Reports the bytes present; the count falls when the download restarts. */
  onBytes(bytes: number): void;
}

/** @throws HubError. A partial file stays for a later resume. */
export async function downloadFile(download: FileDownload): Promise<void> {
  const { cache, file, reference } = download;
  const path = cache.partial(file.hash.hex);
  const partial = new PartialFile(await open(path, constants.O_RDWR | constants.O_CREAT, 0o644), file);
  try {
    for (let attempt = 1; ; attempt++) {
      await fill(partial, download);
      if (partial.digest() === file.hash.hex) break;
      await partial.restart();
      if (attempt === 2) {
        const why = `two downloads do not match the ${file.hash.kind} ${file.hash.hex} that the hub lists`;
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
  const { client, file, reference, observer } = download;
  await partial.load(client.signal);
  observer.onBytes(partial.bytes);
  let bytesMost = partial.bytes;
  const progressed = (): boolean => {
    // A restart is not progress; otherwise a hub that never sends the last byte would be retried forever.
    const more = partial.bytes > bytesMost;
    bytesMost = Math.max(bytesMost, partial.bytes);
    return more;
  };
  const what = `Cannot download ${reference.text}: ${file.path}`;
  const policy: RetryPolicy = { retriesMax, progressed, onRetry: (...retry) => observer.onRetry(...retry) };
  await withRetries(what, client, policy, async () => {
    if (partial.bytes === file.bytes) return;
    await receive(partial, download);
    if (partial.bytes < file.bytes)
      throw new TransientError(`the connection was cut at ${partial.bytes} of ${file.bytes} bytes`);
  });
}

async function receive(partial: PartialFile, download: FileDownload): Promise<void> {
  const { client, file, reference, commit, observer } = download;
  const path = file.path.split('/').map(encodeURIComponent).join('/');
  const url = `${client.settings.endpoint}/${reference.id}/resolve/${commit}/${path}`;
  const range: Record<string, string> = partial.bytes > 0 ? { range: `bytes=${partial.bytes}-` } : {};
  const stream = await client.stream(url, reference, range);
  try {
    checkHeaders(stream, download);
    // A server without range support sends the whole file.
    if (startOf(stream) !== partial.bytes) await partial.restart();
    if (startOf(stream) !== partial.bytes)
      throw new TransientError(`the server sent a range from byte ${startOf(stream)} instead of ${partial.bytes}`);
    for await (const chunk of stream.chunks) {
      if (partial.bytes + chunk.byteLength > file.bytes) {
        await partial.restart();
        throw mismatch(download, `more than the ${file.bytes} bytes that the hub lists`);
      }
      await partial.append(chunk);
      observer.onBytes(partial.bytes);
    }
  } finally {
    stream.close();
  }
}

function startOf({ status, headers }: HubStream): number {
  return status === 206 ? Number(/^bytes (\d+)-/.exec(headers.get('content-range') ?? '')?.[1] ?? 0) : 0;
}

/** Checks the size and hash in the response headers, where present, against the listing. */
function checkHeaders({ status, headers }: HubStream, download: FileDownload): void {
  const { file } = download;
  const total =
    status === 206 ? /\/(\d+)$/.exec(headers.get('content-range') ?? '')?.[1] : headers.get('content-length');
  if (total !== null && total !== undefined && Number(total) !== file.bytes)
    throw mismatch(download, `${total} bytes where the hub lists ${file.bytes}`);
  // Only the hub's own tag is the hash; a redirect target may send any tag.
  const tag = headers.get('x-linked-etag')?.replace(/^W\/|"/g, '');
  if (tag !== undefined && tag.length === file.hash.hex.length && tag !== file.hash.hex)
    throw mismatch(download, `content ${tag} where the hub lists ${file.hash.hex}`);
}

function mismatch({ reference, file }: FileDownload, what: string): HubError {
  return new HubError('corrupt', `Cannot download ${reference.text}: ${file.path}: the server sends ${what}`);
}

/** Explains a full disk; returns any other error unchanged. */
async function diskError(error: unknown, path: string, download: FileDownload, bytes: number): Promise<unknown> {
  const code = error instanceof HubError ? undefined : systemCode(error);
  if (code !== 'ENOSPC' && code !== 'EDQUOT') return error;
  const { reference, file } = download;
  return diskFullError(reference, file.bytes - bytes, dirname(path));
}

/** @param bytesNeeded bytes still to download */
export async function diskFullError(reference: HubReference, bytesNeeded: number, folder: string): Promise<HubError> {
  const why = `the disk is full: ${bytesNeeded} more bytes needed, ${await freeBytes(folder)} free in ${folder}`;
  return new HubError('disk', `Cannot download ${reference.text}: ${why}; the next pull resumes the download`);
}

export async function freeBytes(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize;
}

/** A partial file and the hash of its content so far. */
class PartialFile {
  readonly #handle: FileHandle;
  readonly #file: RemoteFile;
  #hash: Hash;
  #bytes = 0;

  constructor(handle: FileHandle, file: RemoteFile) {
    this.#handle = handle;
    this.#file = file;
    this.#hash = newHash(file);
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Hashes the bytes of an earlier download, unless this process already did. */
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
    this.#hash = newHash(this.#file);
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

/** Git hashes a blob after its size. */
function newHash({ hash, bytes }: RemoteFile): Hash {
  return hash.kind === 'sha256' ? createHash('sha256') : createHash('sha1').update(`blob ${bytes}\0`);
}
