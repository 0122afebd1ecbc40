// The `kvasir` command: parses, dispatches, and turns every failure into one line and an exit code.
import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { HubError } from '../weights/hub/errors.ts';
import { benchCommand } from './commands/bench.ts';
import { chatCommand } from './commands/chat.ts';
import { generateCommand } from './commands/generate.ts';
import { modelsCommand } from './commands/models.ts';
import { serveCommand } from './commands/serve.ts';
import { simulateCommand } from './commands/simulate.ts';
import { traceCommand } from './commands/trace.ts';
import { packageFile } from './package-root.ts';
import { UsageError } from './usage-error.ts';

function createProgram(): Command {
  const { version } = JSON.parse(readFileSync(packageFile('package.json'), 'utf8')) as { version: string };
  const program = new Command('kvasir')
    .description('KVCache-centric LLM serving: one OpenAI-compatible endpoint over your own machines')
    .version(version)
    .showHelpAfterError('(kvasir COMMAND --help lists the options)');
  for (const command of [
    serveCommand(),
    generateCommand(),
    chatCommand(),
    modelsCommand(),
    simulateCommand(),
    traceCommand(),
    benchCommand(),
  ]) {
    command.copyInheritedSettings(program);
    program.addCommand(command);
  }
  return withExitCodes(program);
}

/** Commander's own exits become exceptions, so that bad usage is always exit code 2. */
function withExitCodes(command: Command): Command {
  command.exitOverride();
  for (const child of command.commands) withExitCodes(child);
  return command;
}

async function main(argv: readonly string[]): Promise<number> {
  try {
    await createProgram().parseAsync([...argv]);
    return 0;
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    console.error(error instanceof Error ? error.message : String(error));
    if (process.env.KVASIR_DEBUG !== undefined && error instanceof Error) console.error(error.stack);
    // What a shell reports of a process that SIGINT ended.
    if (error instanceof HubError && error.kind === 'interrupted') return 130;
    return error instanceof UsageError ? 2 : 1;
  }
}

// Whoever reads the output may have seen enough (`kvasir generate ... | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(0);
});

process.exitCode = await main(process.argv);
