// Files that commands write: checked before the work, written after it.
import { accessSync, closeSync, constants, openSync, statSync, writeFileSync } from 'node:fs';
import { toFlag } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';

/**
 * Opens each file that a command will write, so that a path that cannot be written is refused before the work. A pipe is not opened: its reader
 * would read its end.
 * @param paths by flag
 * @throws UsageError
 */
export function checkOutputs(paths: Readonly<Record<string, string | undefined>>): void {
  for (const [name, path] of Object.entries(paths)) {
    if (path === undefined) continue;
    try {
      if (statSync(path, { throwIfNoEntry: false })?.isFIFO() === true) accessSync(path, constants.W_OK);
      else closeSync(openSync(path, 'a'));
    } catch (error) {
      const why = error instanceof Error ? error.message.split('\n')[0] : String(error);
      throw new UsageError(`Cannot use --${toFlag(name)} ${path}: ${why}`);
    }
  }
}

/** @throws Error with the path and the reason */
export function writeOutput(path: string, text: string): void {
  try {
    writeFileSync(path, text);
  } catch (error) {
    throw new Error(`Cannot write ${path}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`);
  }
}
