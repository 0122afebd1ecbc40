// `kvasir bench overhead`: tokens over HTTP beside engine steps, in turns.
import { spawn } from 'node:child_process';
import { Command } from 'commander';
import { z } from 'zod';
import { EngineBench } from '../../bench/engine.ts';
import { benchOverhead } from '../../bench/http/overhead.ts';
import { addFormFlags, modelOptionsSchema, readOptions } from '../options/options.ts';
import { packageFile } from '../package-root.ts';
import { createBackend } from '../serve/backend.ts';
import { locateModel } from '../serve/model/locate-model.ts';
import { printTable } from '../terminal/table.ts';
import { killAtExit, killChild } from './cluster/local-nats.ts';
import { addressOf, serveCommand } from './cluster/process-cluster.ts';
import { benchModelSchema, count, counts, progress, threadsFlag } from './options.ts';

const overheadSchema = benchModelSchema.extend({
  threads: modelOptionsSchema.shape.threads,
  url: z.url({ protocol: /^https?$/, error: 'give the address of a server, like http://127.0.0.1:8000' }).optional(),
  prompt: count(512),
  depth: count(16),
  generate: count(64),
  batch: counts(1, [1, 32]),
  rounds: count(7),
});

export function overheadCommand(): Command {
  return addFormFlags(new Command('overhead'))
    .addOption(threadsFlag())
    .option('--url <url>', 'Measure the server at this address (default: start one)')
    .option('--prompt <tokens>', 'Prefill a prompt of this length (default: 512)')
    .option('--depth <tokens>', 'Decode after prompts of this length (default: 16)')
    .option('--generate <tokens>', 'Decode this number of tokens per stream (default: 64)')
    .option('--batch <list>', 'Decode these numbers of streams together (default: 1,32)')
    .option('--rounds <n>', 'Measure this number of rounds (default: 7)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { threads, model: named, weights, inputs, kvType, url, ...sizes } = readOptions(overheadSchema, flags);
      const { path: model } = await locateModel(named);
      const form = { model, weights, inputs, kvType };
      const flagsOfServer = { model, weights, inputs, ...(kvType && { 'kv-type': kvType }), threads: String(threads) };
      const server = url === undefined ? await startServer(flagsOfServer) : undefined;
      const backend = createBackend(threads);
      const engine = new EngineBench(backend, form);
      try {
        const measured = { ...sizes, url: url ?? server?.url ?? '', onProgress: progress };
        const report = { ...engine.description, ...(await benchOverhead(engine, measured)) };
        if (json === true) return console.log(JSON.stringify(report));
        const { rows, ...facts } = report;
        printTable([facts], 'Model and machine');
        printTable(rows, 'Overhead');
      } finally {
        engine.close();
        backend.close();
        await server?.close();
      }
    });
}

async function startServer(options: Readonly<Record<string, string>>) {
  const flags = Object.entries(options).flatMap(([name, value]) => [`--${name}`, value]);
  const command = [packageFile('bundle/cli/main.js'), ...serveCommand, ...flags];
  const child = killAtExit(spawn(process.execPath, command, { stdio: ['ignore', 'pipe', 'ignore'] }));
  return { url: await addressOf(child, 'bench the overhead'), close: () => killChild(child) };
}
