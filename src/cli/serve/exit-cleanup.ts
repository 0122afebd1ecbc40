// What goes with this process, however it ends: by itself, by an error, or by a signal that asks it to.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
const acts = new Set<() => void>();

/** @param act short and synchronous. Returns what takes it back. */
export function atEnd(act: () => void): () => void {
  if (acts.size === 0) listen();
  acts.add(act);
  return () => {
    if (acts.delete(act) && acts.size === 0) stopListening();
  };
}

export interface TemporaryFolder {
  readonly path: string;
  remove(): void;
}

/** One of this process's own, with all that is put there. @param under the system's folder for such, unless another one is given */
export function temporaryFolder(name: string, under = tmpdir()): TemporaryFolder {
  const path = mkdtempSync(join(under, `kvasir-${name}-`));
  // Who writes there may not have ended yet that was killed just now.
  const removed = (): void => rmSync(path, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
  const forget = atEnd(removed);
  return {
    path,
    remove() {
      forget();
      removed();
    },
  };
}

function listen(): void {
  process.on('exit', end);
  for (const signal of signals) process.on(signal, endBy);
}

function stopListening(): void {
  process.off('exit', end);
  for (const signal of signals) process.off(signal, endBy);
}

/** The last to come is the first to go. */
function end(): void {
  for (const act of [...acts].toReversed()) act();
  acts.clear();
  stopListening();
}

/** Then as if nobody had listened. */
function endBy(signal: NodeJS.Signals): void {
  end();
  process.kill(process.pid, signal);
}
