// Commands by name, each loaded on first use, so that no command waits for the modules of another.
import type { Command } from 'commander';

export type CommandLoaders = Readonly<Record<string, (words: readonly string[]) => Command | Promise<Command>>>;

/** Adds the command that the first of `words` names, with the other words, or all commands when it names none. */
export async function addCommands(
  parent: Command,
  commands: CommandLoaders,
  [named = '', ...rest]: readonly string[],
): Promise<void> {
  const selected = Object.hasOwn(commands, named) ? [named] : Object.keys(commands);
  for (const name of selected) {
    const command = await commands[name]?.(rest);
    if (command === undefined) continue;
    command.copyInheritedSettings(parent);
    parent.addCommand(command);
  }
}
