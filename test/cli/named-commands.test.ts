// Commands that are loaded on first use.
import { Command } from 'commander';
import { expect, test } from 'vitest';
import { addCommands } from '../../src/cli/named-commands.ts';
import { kvasir } from './command.ts';

test.each([
  ['no command', []],
  ['an option', ['--help']],
  ['an unknown command', ['sing']],
  ['the help command', ['help']],
  ['a command', ['bench', 'engine', '--json'], 'bench', 'engine', '--json'],
  ['a command after an option', ['--help', 'serve'], 'serve'],
  ['the help of a command', ['help', 'bench', 'engine'], 'bench', 'engine'],
])('words that name %s load only what they name', async (_, words, ...expected) => {
  const loaded: string[] = [];
  const program = new Command();
  const named = (name: string) => ({
    description: `The ${name}`,
    load: (rest: readonly string[]) => {
      loaded.push(name, ...rest);
      return Promise.resolve(new Command(name));
    },
  });
  await addCommands(program, { serve: named('serve'), bench: named('bench') }, words);
  expect(loaded).toEqual(expected);
  expect(program.commands.map((each) => each.description())).toEqual(['The serve', 'The bench']);
});

test('the version and the list of commands come without a command, and an unknown name gets a suggestion', async () => {
  expect(await kvasir('--version')).toMatchObject({ status: 0, stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/) });
  expect((await kvasir('--help')).stdout).toMatch(/\n {2}simulate +Replay a workload on a simulated cluster/);
  expect(await kvasir('serv')).toMatchObject({ status: 2, stderr: expect.stringContaining('Did you mean serve?') });
});
