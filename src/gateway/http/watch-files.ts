// Notices that files were replaced: editors, and secrets that an orchestrator mounts, replace the file itself.
import { statSync } from 'node:fs';

const pollMs = 1000;

/** Calls `onChange` when the time, size or inode of a file has changed since this call. Returns the end of the watch. */
export function watchFiles(paths: readonly string[], onChange: () => void): () => void {
  let seen = paths.map(stampOf).join();
  const timer = setInterval(() => {
    const stamp = paths.map(stampOf).join();
    if (stamp === seen) return;
    seen = stamp;
    onChange();
  }, pollMs).unref();
  return () => clearInterval(timer);
}

function stampOf(path: string): string {
  const stats = statSync(path, { throwIfNoEntry: false });
  return stats === undefined ? 'absent' : `${stats.mtimeMs} ${stats.size} ${stats.ino}`;
}
