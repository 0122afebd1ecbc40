// Opens the data folder of a gateway for one process at a time.
import { DataFolder } from '../../../gateway/http/data-folder.ts';
import { FolderLock } from '../../../weights/hub/lock.ts';
import { UsageError } from '../../usage-error.ts';
import { codeOf, makeFolder } from './make-folder.ts';

export interface OpenData {
  readonly folder: DataFolder;
  release(): Promise<void>;
}

/** @throws UsageError if it cannot be created or written, Error in one line if another process uses it */
export async function openData(path: string, log: (message: string) => void): Promise<OpenData> {
  makeFolder(path, 'data');
  const folder = new DataFolder(path, log);
  const lock = await FolderLock.tryAcquire(path).catch((error: unknown) => {
    throw new UsageError(`Cannot keep data at ${path}: it cannot be written: ${codeOf(error)}`);
  });
  if (typeof lock === 'string') throw new Error(`Cannot keep data at ${path}: ${lock} uses it`);
  return { folder, release: () => lock.release() };
}
