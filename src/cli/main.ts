// The `kvasir` process.
import { runCommandLine } from './command-line.ts';

// The reader of the output may close it early (`kvasir generate ... | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(0);
});

process.exitCode = await runCommandLine(process.argv.slice(2));
