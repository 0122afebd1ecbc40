// The reference page of options, rendered from the commands themselves.
import type { Command, Option } from 'commander';
import { benches } from '../../src/cli/commands/bench.ts';
import { chatCommand } from '../../src/cli/commands/chat.ts';
import { dashboardCommand } from '../../src/cli/commands/dashboard.ts';
import { doctorCommand } from '../../src/cli/commands/doctor.ts';
import { generateCommand } from '../../src/cli/commands/generate.ts';
import { graphCommand } from '../../src/cli/commands/graph.ts';
import { joinCommand } from '../../src/cli/commands/join.ts';
import { modelsCommand } from '../../src/cli/commands/models.ts';
import { planCommand } from '../../src/cli/commands/plan.ts';
import { reproduceCommand } from '../../src/cli/commands/reproduce.ts';
import { serveCommand } from '../../src/cli/commands/serve.ts';
import { simulateCommand } from '../../src/cli/commands/simulate.ts';
import { sweepCommand } from '../../src/cli/commands/sweep.ts';
import { topCommand } from '../../src/cli/commands/top.ts';
import { traceCommand } from '../../src/cli/commands/trace.ts';
import { wrap } from './wrap.ts';

interface Listed {
  readonly option: Option;
  readonly description: string;
  readonly commands: string[];
}

/** `docs/reference/options.md`. */
export async function optionPage(): Promise<string> {
  const serving = [serveCommand(), joinCommand(), generateCommand(), chatCommand()];
  const trace = traceCommand();
  const simulating = [simulateCommand(), sweepCommand(), reproduceCommand(), planCommand(), ...trace.commands];
  const loaded = await Promise.all(Object.values(benches).map(({ load }) => load([])));
  const measuring = loaded.flatMap((each) => (each.commands.length > 0 ? [...each.commands] : [each]));
  return [
    '# Options',
    '',
    ...wrap(
      'Every option of every command, as `--help-all` prints it. [Configuration](config.md) describes values and files.',
    ),
    ...wrap('This page is generated: `npx vitest run test/docs/reference.test.ts -u` writes it anew.'),
    '',
    ...section('serve, join, generate, chat', serving),
    ...section('simulate, sweep, reproduce, plan, trace', simulating),
    ...section('top, dashboard, doctor, models, graph', [
      topCommand(),
      dashboardCommand(),
      doctorCommand(),
      ...modelsCommand().commands,
      graphCommand(),
    ]),
    ...section('bench', measuring),
  ]
    .join('\n')
    .replace(/\n+$/, '\n');
}

function section(title: string, commands: readonly Command[]): string[] {
  const groups = new Map<string, Listed[]>();
  for (const command of commands) {
    for (const option of command.options) {
      if (option.hidden || option.long === '--help-all') continue;
      const heading = (option.helpGroupHeading ?? '').replace(/:$/, '');
      const group = groups.get(heading) ?? [];
      groups.set(heading, group);
      const description = describe(option);
      const same = group.find((each) => each.option.flags === option.flags && each.description === description);
      if (same === undefined) group.push({ option, description, commands: [nameOf(command)] });
      else same.commands.push(nameOf(command));
    }
  }
  const lists = [...groups].flatMap(([heading, listed]) => [
    ...(heading === '' ? [] : [`### ${heading} (${title})`, '']),
    ...listed.flatMap((each) => item(each, commands)),
    '',
  ]);
  return [`## ${title}`, '', ...lists];
}

function nameOf(command: Command): string {
  const parent = command.parent?.name();
  return ['models', 'trace', 'kernel'].includes(parent ?? '') ? `${parent} ${command.name()}` : command.name();
}

function item({ option, description, commands }: Listed, all: readonly Command[]): string[] {
  const where = commands.length === all.length ? '' : ` (${commands.join(', ')})`;
  return wrap(`\`${option.flags}\`${where}: ${description}`, '- ', '  ');
}

function describe({ description, argChoices, envVar }: Option): string {
  const notes = [
    ...(argChoices === undefined ? [] : [`one of ${argChoices.map((choice) => `\`${choice}\``).join(', ')}`]),
    ...(envVar === undefined ? [] : [`environment: \`${envVar}\``]),
  ];
  return notes.length === 0 ? `${description}.` : `${description}; ${notes.join('; ')}.`;
}
