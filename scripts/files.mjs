// Lists files and reads records of earlier runs.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The parsed file, or undefined when it is missing or incomplete: the work is then done again. */
export function readRecord(path) {
  try {
    return JSON.parse(readFileSync(path, 'utf8'));
  } catch {
    return undefined;
  }
}

/** Paths of all files below `folder`, sorted; none when the folder does not exist. */
export function filesUnder(folder) {
  if (!existsSync(folder)) return [];
  const names = readdirSync(folder, { recursive: true }).map(String);
  return names.sort().map((name) => join(folder, name));
}

/** True while a process with this id runs. */
export function isRunning(pid) {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return error.code === 'EPERM';
  }
}
