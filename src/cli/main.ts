// The `kvasir` command: parses, dispatches, and turns every failure into one line and an exit code.
import { Command, CommanderError } from 'commander';
import { HubError } from '../weights/hub/errors.ts';
import { addCommands, type CommandLoaders } from './named-commands.ts';
import { packageVersion } from './package-root.ts';
import { withReadableHelp } from './terminal/help.ts';
import { UsageError } from './usage-error.ts';

/** In the order of the help. */
const commands: CommandLoaders = {
  serve: async () => (await import('./commands/serve.ts')).serveCommand(),
  top: async () => (await import('./commands/top.ts')).topCommand(),
  dashboard: async () => (await import('./commands/dashboard.ts')).dashboardCommand(),
  join: async () => (await import('./commands/join.ts')).joinCommand(),
  doctor: async () => (await import('./commands/doctor.ts')).doctorCommand(),
  generate: async () => (await import('./commands/generate.ts')).generateCommand(),
  chat: async () => (await import('./commands/chat.ts')).chatCommand(),
  models: async () => (await import('./commands/models.ts')).modelsCommand(),
  graph: async () => (await import('./commands/graph.ts')).graphCommand(),
  simulate: async () => (await import('./commands/simulate.ts')).simulateCommand(),
  sweep: async () => (await import('./commands/sweep.ts')).sweepCommand(),
  reproduce: async () => (await import('./commands/reproduce.ts')).reproduceCommand(),
  plan: async () => (await import('./commands/plan.ts')).planCommand(),
  trace: async () => (await import('./commands/trace.ts')).traceCommand(),
  bench: async (words) => (await import('./commands/bench.ts')).benchCommand(words),
};

/** Adds the command that `words` names, or all commands when it names none. */
async function createProgram(words: readonly string[]): Promise<Command> {
  const version = packageVersion();
  const program = new Command('kvasir')
    .description('KVCache-centric LLM serving: one OpenAI-compatible endpoint over your own machines')
    .version(version)
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

async function main(argv: readonly string[]): Promise<number> {
  try {
    await (await createProgram(argv.slice(2))).parseAsync([...argv]);
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

// The reader of the output may close it early (`kvasir generate ... | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(0);
});

process.exitCode = await main(process.argv);
