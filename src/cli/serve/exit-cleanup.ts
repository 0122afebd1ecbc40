// Clean-up at the end of the process: a normal end, an error or a signal.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
const cleanups = new Set<() => void>();

/** Runs a short, synchronous `cleanup` at exit. Returns a function that cancels it. */
export function atExit(cleanup: () => void): () => void {
  if (cleanups.size === 0) listen();
  cleanups.add(cleanup);
  return () => {
    if (cleanups.delete(cleanup) && cleanups.size === 0) stopListening();
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
  const remove = (): void => rmSync(path, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
  const cancel = atExit(remove);
  return {
    path,
    remove() {
      cancel();
      remove();
    },
  };
}

function listen(): void {
  process.on('exit', runCleanups);
  for (const signal of signals) process.on(signal, exitBySignal);
}

function stopListening(): void {
  process.off('exit', runCleanups);
  for (const signal of signals) process.off(signal, exitBySignal);
}

/** Runs clean-up in reverse order. */
function runCleanups(): void {
  for (const cleanup of [...cleanups].toReversed()) cleanup();
  cleanups.clear();
  stopListening();
}

/** Runs clean-up, then ends the process by the signal, as without a listener. */
function exitBySignal(signal: NodeJS.Signals): void {
  runCleanups();
  process.kill(process.pid, signal);
}
