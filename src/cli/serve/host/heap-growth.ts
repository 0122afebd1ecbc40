// Bounds how much garbage V8 keeps in the heaps of a process that serves for long.
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/**
 * Called once, before threads start. V8 collects all garbage of a heap first at some 100 MB, and then whenever it has grown
 * to four times of what is in use: the resident memory of a server would rise for hours, and differ from one to the next.
 */
export function boundHeapGrowth(): void {
  // Each collection delays the requests of some 30 ms, so a bound nearer to what is in use costs latency.
  setFlagsFromString('--heap-growing-percent=100');
  // In megabytes; for the heaps of threads.
  setFlagsFromString('--initial-old-space-size=48');
  // The heap of this thread has its first limit already: a collection replaces it.
  collect();
}

function collect(): void {
  // Threads of a process that was started with `--expose-gc` need that flag.
  if (globalThis.gc !== undefined) {
    globalThis.gc();
    return;
  }
  setFlagsFromString('--expose-gc');
  runInNewContext('gc')();
  setFlagsFromString('--no-expose-gc');
}
