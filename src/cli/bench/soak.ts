// `kvasir bench soak`: minutes of mixed traffic against a running server, or one that it starts.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Command } from 'commander';
import { z } from 'zod';
import { benchSoak, type SoakReport, type SoakSample } from '../../bench/soak/run.ts';
import type { ServerMemory } from '../../bench/soak/settle.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { packageFile } from '../package-root.ts';
import { memoryRequest } from '../serve/host/memory-probe.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';
import { addressOf, serveCommand } from './cluster/process-cluster.ts';
import { progress } from './options.ts';

/** Small, so that the cache is full within the first minute and later growth is not cache. */
const kvMemory = '64m';
const queue = 64;

const soakSchema = z.object({
  minutes: numeric(z.number().min(0.01)).default(5),
  url: z.url({ protocol: /^http$/, error: 'give the address of a server, like http://127.0.0.1:8000' }).optional(),
  model: z.string().optional(),
  apiKey: z.string().optional(),
  lanes: numeric(z.number().int().min(1)).default(24),
  burst: numeric(z.number().int().min(0)).default(100),
  seed: numeric(z.number().int()).default(1),
});

export function soakCommand(): Command {
  return new Command('soak')
    .option('--minutes <n>', 'Run for this time (default: 5)')
    .option('--url <url>', 'Use a running server without measuring its memory (default: start one)')
    .option('--model <path>', 'Load this model on the started server (default: the embedded kvasir-tiny)')
    .option('--api-key <key>', 'Send this bearer token')
    .option('--lanes <n>', 'Keep this number of requests running (default: 24)')
    .option(
      '--burst <n>',
      `Send this number of requests at once every 20 s; the started server takes ${queue} (default: 100)`,
    )
    .option('--seed <n>', 'Seed the choice of requests (default: 1)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { url, model, ...options } = readOptions(soakSchema, flags);
      if (url !== undefined && model !== undefined)
        throw new UsageError('Cannot use --model with --url: the server has its own model');
      const report =
        url === undefined
          ? await soakOwnServer(model, options)
          : await benchSoak({ ...options, url, measure: undefined, onSample });
      if (json === true) console.log(JSON.stringify(report));
      else printTable([{ ...report, samples: report.samples.length }], 'Soak');
    });
}

type Options = Omit<Parameters<typeof benchSoak>[0], 'url' | 'measure'>;

async function soakOwnServer(model: string | undefined, options: Options): Promise<SoakReport> {
  const flags = [
    ...serveCommand,
    ...['--kv-memory', kvMemory],
    ...['--queue', String(queue)],
    ...(model === undefined ? [] : ['--model', model]),
  ];
  const server = fork(packageFile('bundle/cli/main.js'), flags, {
    execArgv: ['--expose-gc'],
    stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
  });
  try {
    const url = await addressOf(server, 'soak');
    return await benchSoak({ ...options, url, measure: () => measure(server), onSample });
  } finally {
    const ended = server.exitCode === null ? once(server, 'exit') : undefined;
    server.kill('SIGTERM');
    await ended;
  }
}

async function measure(server: ChildProcess): Promise<ServerMemory> {
  const answer = once(server, 'message');
  server.send(memoryRequest);
  const [memory] = (await answer) as [ServerMemory];
  return memory;
}

function onSample({ seconds, requests, pagesUsed, residentBytes, heapBytes }: SoakSample): void {
  const megabytes = (bytes: number | undefined): string =>
    bytes === undefined ? '?' : `${(bytes / 1e6).toFixed(1)} MB`;
  progress(
    `${seconds} s: ${requests} requests, ${pagesUsed} pages used, resident ${megabytes(residentBytes)}, heaps ${megabytes(heapBytes)}`,
  );
}
