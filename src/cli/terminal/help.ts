// Layout of `--help`: titled groups of options in 100 columns, and rare groups only under `--help-all`.
import { type Command, Help, Option } from 'commander';
import { columnsMax } from './table.ts';

/** Titles of groups, in the order of the help. */
export const groups = {
  workload: 'Workload:',
  model: 'Model:',
  generation: 'Generation:',
  http: 'HTTP:',
  instances: 'Instances:',
  memory: 'Memory:',
  limits: 'Limits:',
  cluster: 'Cluster:',
  scheduling: 'Scheduling:',
  lending: 'Lending:',
  sparse: 'Sparse KV:',
  attention: 'Attention workers:',
  pipeline: 'Pipeline:',
  tiers: 'Tiers:',
  network: 'Network:',
  roles: 'Instances by role:',
  store: 'Store instances:',
  standby: 'Standby instances:',
  synthetic: 'Synthetic workloads:',
  transform: 'Workload transformations:',
  faults: 'Faults:',
  observability: 'Observability:',
  output: 'Output:',
} as const;
type Group = (typeof groups)[keyof typeof groups];

const otherOptions = 'Options:';
const order: readonly string[] = [...Object.values(groups), otherOptions];

/** Groups that `--help` leaves out, by command. */
const rareGroups = new WeakMap<Command, ReadonlySet<string>>();

/** `--help` leaves these groups out and names them; `--help-all` prints every group. */
export function addHelpAll(command: Command, ...rare: readonly Group[]): Command {
  rareGroups.set(command, new Set(rare));
  const titles = rare.map((title) => title.slice(0, -1).toLowerCase());
  const list = `${titles.slice(0, -1).join(', ')} and ${titles.at(-1)}`;
  return command
    .addOption(new Option('--help-all', `Print all options, also those for ${list}`).helpGroup(otherOptions))
    .on('option:help-all', () => {
      rareGroups.delete(command);
      command.help();
    });
}

/** An option under the name of an earlier version, which the help leaves out. */
export function olderName(flags: string): Option {
  return new Option(flags).hideHelp();
}

/** Sets up the help of a command and of its subcommands. */
export function withReadableHelp(command: Command): Command {
  command.createHelp = () => new ReadableHelp();
  command.addHelpOption(new Option('-h, --help', 'Print this help').helpGroup(otherOptions));
  for (const child of command.commands) withReadableHelp(child);
  return command;
}

class ReadableHelp extends Help {
  #isPrinting = false;

  override formatHelp(command: Command, helper: Help): string {
    this.helpWidth = Math.min(process.stdout.columns ?? columnsMax, columnsMax);
    this.#isPrinting = true;
    return super.formatHelp(command, helper);
  }

  override visibleOptions(command: Command): Option[] {
    const visible = super.visibleOptions(command);
    // Suggestions for misspelled options search all of them.
    if (!this.#isPrinting) return visible;
    const rare = rareGroups.get(command);
    const place = ({ helpGroupHeading = otherOptions }: Option) => order.indexOf(helpGroupHeading);
    return visible
      .filter(({ helpGroupHeading = '' }) => rare?.has(helpGroupHeading) !== true)
      .sort((a, b) => place(a) - place(b));
  }

  override groupItems<T extends Command | Option>(
    _all: T[],
    visible: T[],
    groupOf: (item: T) => string,
  ): Map<string, T[]> {
    return super.groupItems(visible, visible, groupOf);
  }

  override optionDescription({ description, argChoices, envVar }: Option): string {
    const [text, usual] = description.endsWith(')') ? description.slice(0, -1).split(' (default: ') : [description];
    const notes = [
      ...(argChoices === undefined ? [] : [argChoices.join(', ')]),
      ...(usual === undefined ? [] : [`default: ${usual}`]),
      ...(envVar === undefined ? [] : [`environment: ${envVar}`]),
    ];
    return notes.length === 0 ? description : `${text} (${notes.join('; ')})`;
  }
}
