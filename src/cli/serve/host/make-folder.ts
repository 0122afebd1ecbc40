// Creates folders of options with their parents, or refuses them in one line.
import { accessSync, constants, mkdirSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { UsageError } from '../../usage-error.ts';

/** Blocks and data hold what clients sent: only the user of the process may read them. */
const folderMode = 0o700;

/** @param purpose the contents, for the message @throws UsageError if the folder cannot be created or written */
export function makeFolder(folder: string, purpose: string): void {
  const cannot = (why: string) => new UsageError(`Cannot keep ${purpose} at ${folder}: ${why}`);
  try {
    makeAll(resolve(folder));
  } catch (error) {
    throw cannot(codeOf(error) === 'EEXIST' ? 'it is not a folder' : `no folder can be created: ${codeOf(error)}`);
  }
  try {
    accessSync(folder, constants.W_OK);
  } catch (error) {
    throw cannot(`it cannot be written: ${codeOf(error)}`);
  }
}

/** Creates parents one by one: Node's recursive mkdir does not end in /proc. */
function makeAll(folder: string): void {
  if (statSync(folder, { throwIfNoEntry: false })?.isDirectory() === true) return;
  if (dirname(folder) !== folder) makeAll(dirname(folder));
  try {
    mkdirSync(folder, { mode: folderMode });
  } catch (error) {
    // Another process may create the same folder.
    if (codeOf(error) !== 'EEXIST' || !statSync(folder).isDirectory()) throw error;
  }
}

/** The error code of the system, or the error as text. */
export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : String(error);
}
