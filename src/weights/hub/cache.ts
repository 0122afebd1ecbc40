// The cache on disk, in the layout of Hugging Face's tools: blobs by hash, snapshots of links, refs to commits.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { copyFile, mkdir, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { isCommit, isInsideRelative } from './reference.ts';

/** One repository's folder in the cache. */
export class RepositoryCache {
  readonly folder: string;
  /** Folder of the lock that downloads take. */
  readonly lockFolder: string;
  readonly blobFolder: string;
  #temporaries = 0;

  constructor(cacheFolder: string, id: string) {
    const name = `models--${id.replaceAll('/', '--')}`;
    this.folder = join(cacheFolder, name);
    this.lockFolder = join(cacheFolder, '.locks', name);
    this.blobFolder = join(this.folder, 'blobs');
  }

  blob(hash: string): string {
    return join(this.blobFolder, hash);
  }

  /** Differs from the `.incomplete` name of other tools, so that two tools never append to the same file. */
  partial(hash: string): string {
    return join(this.blobFolder, `${hash}.kvasir.incomplete`);
  }

  snapshot(commit: string): string {
    return join(this.folder, 'snapshots', commit);
  }

  /** Commit of a revision at the last contact with the hub. */
  commitOf(revision: string): string | undefined {
    if (isCommit(revision)) return revision;
    if (!isInsideRelative(revision)) return undefined;
    try {
      const commit = readFileSync(join(this.folder, 'refs', revision), 'utf8').trim();
      return isCommit(commit) ? commit : undefined;
    } catch {
      return undefined;
    }
  }

  async writeRef(revision: string, commit: string): Promise<void> {
    if (isCommit(revision) || this.commitOf(revision) === commit) return;
    const path = join(this.folder, 'refs', revision);
    await mkdir(dirname(path), { recursive: true });
    await this.#replace(path, (temporary) => writeFile(temporary, commit));
  }

  /** Paths of a snapshot's files with readable content. */
  snapshotFiles(commit: string): string[] {
    const root = this.snapshot(commit);
    if (!existsSync(root)) return [];
    return pathsBelow(root).filter((name) => sizeOf(join(root, name)) !== undefined);
  }

  /** True when the file is present with this size. */
  holds(commit: string, path: string, bytes: number): boolean {
    return sizeOf(join(this.snapshot(commit), path)) === bytes;
  }

  /** Adds a downloaded blob to a snapshot. */
  async link(commit: string, path: string, hash: string, makeLink: typeof symlink = symlink): Promise<void> {
    const target = join(this.snapshot(commit), path);
    await mkdir(dirname(target), { recursive: true });
    await this.#replace(target, async (temporary) => {
      try {
        await makeLink(relative(dirname(target), this.blob(hash)), temporary);
      } catch {
        await copyFile(this.blob(hash), temporary);
      }
    });
  }

  /** Replaces an entry atomically: readers see the old one or the new one. */
  async #replace(path: string, create: (temporary: string) => Promise<void>): Promise<void> {
    const temporary = join(this.folder, `.${process.pid}-${this.#temporaries++}.tmp`);
    await rm(temporary, { force: true });
    await create(temporary);
    await rename(temporary, path);
  }
}

/**
 * Relative paths of all entries except folders. A link to a folder is not followed: it may lead outside or form a
 * cycle.
 */
export function pathsBelow(root: string, folder = ''): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    return entry.isDirectory() ? pathsBelow(root, path) : [path];
  });
}

/** Size of a regular file; links are followed. */
export function sizeOf(path: string): number | undefined {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat?.isFile() === true ? stat.size : undefined;
}
