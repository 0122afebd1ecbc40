// Commands by name, each loaded when it is asked for: none waits for what others need.
import type { Command } from 'commander';

export type Named = Readonly<Record<string, (words: readonly string[]) => Command | Promise<Command>>>;

/** Adds the command that the first of `words` names, which gets the rest, or all of them where it names none. */
export async function addNamed(
  parent: Command,
  commands: Named,
  [named = '', ...rest]: readonly string[],
): Promise<void> {
  const wanted = Object.hasOwn(commands, named) ? [named] : Object.keys(commands);
  for (const name of wanted) {
    const command = await commands[name]?.(rest);
    if (command === undefined) continue;
    command.copyInheritedSettings(parent);
    parent.addCommand(command);
  }
}
