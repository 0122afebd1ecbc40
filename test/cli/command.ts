// Runs `kvasir` as its process does, but inside the process of the test, which has loaded the modules already.
import { format } from 'node:util';
import { vi } from 'vitest';
import { runCommandLine } from '../../src/cli/command-line.ts';

export interface CommandResult {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** One command at a time: what it prints and its exit code are those of the process. */
export async function kvasir(...words: string[]): Promise<CommandResult> {
  const printed = { stdout: '', stderr: '' };
  const spies = (['stdout', 'stderr'] as const).flatMap((name) => {
    const add = (text: string): void => {
      printed[name] += text;
    };
    const write = vi.spyOn(process[name], 'write').mockImplementation((chunk, ...rest) => {
      add(chunk.toString());
      for (const each of rest) if (typeof each === 'function') process.nextTick(each);
      return true;
    });
    const line = vi
      .spyOn(console, name === 'stdout' ? 'log' : 'error')
      .mockImplementation((...values) => add(`${format(...values)}\n`));
    return [write, line];
  });
  try {
    return { status: await runCommandLine(words), ...printed };
  } finally {
    for (const spy of spies) spy.mockRestore();
    process.exitCode = undefined;
  }
}
