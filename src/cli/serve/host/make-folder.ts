// Folders that flags name: made with those above them, or refused in one line that names them.
import { accessSync, constants, mkdirSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { UsageError } from '../../usage-error.ts';

/** @param purpose what is to be kept there, for the message @throws UsageError where it cannot be made, or written */
export function makeFolder(folder: string, purpose: string): void {
  const cannot = (why: string) => new UsageError(`Cannot keep ${purpose} at ${folder}: ${why}`);
  try {
    makeAll(resolve(folder));
  } catch (error) {
    throw cannot(codeOf(error) === 'EEXIST' ? 'it is no folder' : `no folder can be made: ${codeOf(error)}`);
  }
  try {
    accessSync(folder, constants.W_OK);
  } catch (error) {
    throw cannot(`it cannot be written: ${codeOf(error)}`);
  }
}

/** Step by step: where the system makes no folders at all, Node's own way of making those above never ends. */
function makeAll(folder: string): void {
  if (statSync(folder, { throwIfNoEntry: false })?.isDirectory() === true) return;
  if (dirname(folder) !== folder) makeAll(dirname(folder));
  try {
    mkdirSync(folder);
  } catch (error) {
    // Another process may make the same one.
    if (codeOf(error) !== 'EEXIST' || !statSync(folder).isDirectory()) throw error;
  }
}

/** As the system calls what went wrong. */
export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : String(error);
}
