// `kvasir bench fleet`: starts an engine without a model, a bare proxy and `kvasir serve --fleet` in front of it, and measures them.
import { type ChildProcess, spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { z } from 'zod';
import { benchConductorOverhead } from '../../../bench/fleet/conductor-overhead.ts';
import { readOptions } from '../../options/options.ts';
import { embeddedModel, packageFile } from '../../package-root.ts';
import { temporaryFolder } from '../../serve/exit-cleanup.ts';
import { printTable } from '../../terminal/table.ts';
import { killAtExit, killChild } from '../cluster/local-nats.ts';
import { addressOf, serveCommand } from '../cluster/process-cluster.ts';
import { count, progress } from '../options.ts';

const fleetSchema = z.object({
  rate: count(100),
  seconds: count(10),
  rounds: count(3),
  prompt: count(1000),
  generate: count(8),
  warmUp: count(5000),
});

export function fleetCommand(): Command {
  return new Command('fleet')
    .option('--rate <n>', 'Send this number of requests per second (default: 100)')
    .option('--seconds <s>', 'Measure each server for this time in each round (default: 10)')
    .option('--rounds <n>', 'Measure this number of rounds (default: 3)')
    .option('--prompt <tokens>', 'Send prompts of this length (default: 1000)')
    .option('--generate <tokens>', 'Stream this number of tokens per request (default: 8)')
    .option('--warm-up <n>', 'Send this number of untimed requests to each server first (default: 5000)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(fleetSchema, flags);
      const servers = new Servers();
      try {
        const measured = { ...options, model: 'fake', servers: await servers.start(), onProgress: progress };
        const rows = await benchConductorOverhead(measured);
        if (json === true) return console.log(JSON.stringify({ ...options, rows }));
        printTable([options], 'Load');
        printTable(
          rows.map(({ through, n, firstMs, addedMs, wholeMs, cpuMs }) => ({
            ...{ through, n, 'first p50': firstMs.p50, 'first p99': firstMs.p99 },
            ...{ 'added p50': addedMs.p50, 'added p99': addedMs.p99, 'whole p50': wholeMs.p50, cpuMs },
          })),
          'Overhead (ms)',
        );
      } finally {
        await servers.close();
      }
    });
}

class Servers {
  readonly #folder = temporaryFolder('fleet');
  readonly #children: ChildProcess[] = [];

  /** Addresses by name. */
  async start(): Promise<readonly (readonly [name: string, url: string])[]> {
    const peer = 'bundle/cli/bench/fleet/peer.js';
    const engine = await this.#run([peer]);
    const proxy = await this.#run([peer, engine]);
    const file = join(this.#folder.path, 'fleet.yaml');
    writeFileSync(file, `engines: [${engine}]\n`);
    const gateway = await this.#run(['bundle/cli/main.js', ...serveCommand, '--fleet', file, '--model', embeddedModel]);
    return [
      ['the engine itself', engine],
      ['a bare proxy', proxy],
      ['the gateway', gateway],
    ];
  }

  #run([main, ...flags]: readonly string[]): Promise<string> {
    const command = [packageFile(main), ...flags];
    const child = killAtExit(spawn(process.execPath, command, { stdio: ['ignore', 'pipe', 'ignore'] }));
    this.#children.push(child);
    return addressOf(child, 'bench the fleet');
  }

  async close(): Promise<void> {
    await Promise.all(this.#children.map(killChild));
    this.#folder.remove();
  }
}
