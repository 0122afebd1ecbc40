// Clean-up at the end of the process: by itself, by an error, or by a signal.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
const acts = new Set<() => void>();

/** Runs `act`, short and synchronous, at exit. Returns a function that cancels it. */
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

/** A temporary folder, removed with its contents at exit. @param under the parent folder, by default that of the system */
export function temporaryFolder(name: string, under = tmpdir()): TemporaryFolder {
  const path = mkdtempSync(join(under, `kvasir-${name}-`));
  // A process that was just killed may still write there.
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

/** Runs clean-up in reverse order. */
function end(): void {
  for (const act of [...acts].toReversed()) act();
  acts.clear();
  stopListening();
}

/** Ends the process by the signal, as without a listener. */
function endBy(signal: NodeJS.Signals): void {
  end();
  process.kill(process.pid, signal);
}
