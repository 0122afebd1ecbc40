// The folder in which a gateway keeps what outlives it: one process at a time.
import { DataFolder } from '../gateway/data-folder.ts';
import { FolderLock } from '../weights/hub/lock.ts';

export interface OpenData {
  readonly folder: DataFolder;
  release(): Promise<void>;
}

/** @throws Error in one line where it cannot be written, or another process has it */
export async function openData(path: string, log: (message: string) => void): Promise<OpenData> {
  const folder = new DataFolder(path, log);
  const lock = await FolderLock.tryAcquire(path);
  if (typeof lock === 'string') throw new Error(`Cannot keep data at ${path}: ${lock} has it`);
  return { folder, release: () => lock.release() };
}
