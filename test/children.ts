// Processes that tests start: none outlives its test file, even when a hook fails before it receives them.
import type { ChildProcess } from 'node:child_process';

const living = new Set<ChildProcess>();

/** Kills the process at the end of the file unless it has ended. */
export function leftToUs<Child extends ChildProcess>(child: Child): Child {
  living.add(child);
  child.once('exit', () => living.delete(child));
  return child;
}

export function killLeftOver(): void {
  for (const child of living) child.kill('SIGKILL');
}
