// Commands by name, each loaded on first use: a process loads the modules of the command that it runs, and of no other.
import { Command } from 'commander';

export interface NamedCommand {
  /** For the help of the command and the list of its parent. */
  readonly description: string;
  /** @param words the arguments after the name */
  load(words: readonly string[]): Promise<Command>;
}

export type NamedCommands = Readonly<Record<string, NamedCommand>>;

/** Adds all commands. Only the one that `words` names is loaded; the others have a name and a description, for the help. */
export async function addCommands(parent: Command, commands: NamedCommands, words: readonly string[]): Promise<void> {
  // `help NAME` prints the help of the command.
  const at = words.findIndex((word) => !word.startsWith('-') && word !== 'help');
  for (const [name, { description, load }] of Object.entries(commands)) {
    const command = name === words[at] ? await load(words.slice(at + 1)) : new Command(name);
    parent.addCommand(command.description(description).copyInheritedSettings(parent));
  }
}
