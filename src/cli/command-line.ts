// The command line of `kvasir`: parses, dispatches, and turns every failure into one line and an exit code.
import { Command, CommanderError } from 'commander';
import { HubError } from '../weights/hub/errors.ts';
import { addCommands, type NamedCommands } from './named-commands.ts';
import { packageVersion } from './package-root.ts';
import { withReadableHelp } from './terminal/help.ts';
import { UsageError } from './usage-error.ts';

/** In the order of the help. */
const commands: NamedCommands = {
  serve: {
    description: 'Serve a model over an OpenAI-compatible endpoint',
    load: async () => (await import('./commands/serve.ts')).serveCommand(),
  },
  top: {
    description: 'Show the instances of a server: requests, pages, load and rates; q quits',
    load: async () => (await import('./commands/top.ts')).topCommand(),
  },
  dashboard: {
    description: 'Show a recording of the dashboard, or of simulate --recording, in a browser; a server has /dashboard',
    load: async () => (await import('./commands/dashboard.ts')).dashboardCommand(),
  },
  join: {
    description: 'Add an instance to a cluster that gateways serve with `serve --nats`',
    load: async () => (await import('./commands/join.ts')).joinCommand(),
  },
  doctor: {
    description:
      'Examine a cluster: its record, versions, instruction sets, and whether every KV pages address answers here',
    load: async () => (await import('./commands/doctor.ts')).doctorCommand(),
  },
  generate: {
    description: 'Answer one prompt and stream the output',
    load: async () => (await import('./commands/generate.ts')).generateCommand(),
  },
  chat: {
    description: 'Chat with a model in the terminal; /help lists the commands',
    load: async () => (await import('./commands/chat.ts')).chatCommand(),
  },
  models: {
    description: 'Pull, list, inspect and remove models',
    load: async () => (await import('./commands/models.ts')).modelsCommand(),
  },
  graph: {
    description: 'Print the slices of a model for model workers and attention workers',
    load: async () => (await import('./commands/graph.ts')).graphCommand(),
  },
  simulate: {
    description: 'Replay a workload on a simulated cluster that runs the same schedulers as live instances',
    load: async () => (await import('./commands/simulate.ts')).simulateCommand(),
  },
  sweep: {
    description: 'Simulate every combination of a grid of options with several seeds, on all cores',
    load: async () => (await import('./commands/sweep.ts')).sweepCommand(),
  },
  reproduce: {
    description: 'Run the simulations behind the tables of the published pages, and print the tables',
    load: async () => (await import('./commands/reproduce.ts')).reproduceCommand(),
  },
  plan: {
    description: 'Find the cheapest cluster that serves a workload within its SLO, by simulation',
    load: async () => (await import('./commands/plan.ts')).planCommand(),
  },
  trace: {
    description:
      'Analyse, convert and generate workload traces: Mooncake or Bailian JSON lines, or CSV of Azure, BurstGPT or Vidur',
    load: async () => (await import('./commands/trace.ts')).traceCommand(),
  },
  bench: {
    description: 'Measure a part of the system; every bench has its own --help',
    load: async (words) => (await import('./commands/bench.ts')).benchCommand(words),
  },
};

/** Runs the command that `words`, the arguments of the process, name. @returns the exit code */
export async function runCommandLine(words: readonly string[]): Promise<number> {
  try {
    await (await createProgram(words)).parseAsync([...words], { from: 'user' });
    // A command sets process.exitCode when its report is a failure.
    return Number(process.exitCode ?? 0);
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    console.error(error instanceof Error ? error.message : String(error));
    if (process.env.KVASIR_DEBUG !== undefined && error instanceof Error) console.error(error.stack);
    // The exit code that shells use after SIGINT.
    if (error instanceof HubError && error.kind === 'interrupted') return 130;
    return error instanceof UsageError ? 2 : 1;
  }
}

async function createProgram(words: readonly string[]): Promise<Command> {
  const program = new Command('kvasir')
    .description('KVCache-centric LLM serving: one OpenAI-compatible endpoint over your own machines')
    .version(packageVersion())
    .showHelpAfterError('(kvasir COMMAND --help lists the options)');
  await addCommands(program, commands, words);
  return withExitCodes(withReadableHelp(program));
}

/** Commander's own exits become exceptions, so that bad usage is always exit code 2. */
function withExitCodes(command: Command): Command {
  command.exitOverride();
  for (const child of command.commands) withExitCodes(child);
  return command;
}
