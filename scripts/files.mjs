// Reading what an earlier run left behind.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The parsed file, or undefined when it is missing or cut short: a record of earlier work is only ever a hint. */
export function readRecord(path) {
  try {
    return JSON.parse(readFileSync(path, 'utf8'));
  } catch {
    return undefined;
  }
}

/** Paths of everything below `folder`, sorted; none when it does not exist. */
export function filesUnder(folder) {
  if (!existsSync(folder)) return [];
  const names = readdirSync(folder, { recursive: true }).map(String);
  return names.sort().map((name) => join(folder, name));
}
