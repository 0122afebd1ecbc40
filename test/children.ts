// Processes that tests start: none outlives its file, also where a hook gave up before it had them in hand.
import type { ChildProcess } from 'node:child_process';

const living = new Set<ChildProcess>();

/** It is killed at the end of the file, unless it has ended by then. */
export function leftToUs<Child extends ChildProcess>(child: Child): Child {
  living.add(child);
  child.once('exit', () => living.delete(child));
  return child;
}

export function killLeftOver(): void {
  for (const child of living) child.kill('SIGKILL');
}
