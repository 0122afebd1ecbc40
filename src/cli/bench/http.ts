// `kvasir bench http`: a load against any OpenAI endpoint.
import { Command } from 'commander';
import { z } from 'zod';
import { fullSizes } from '../../bench/http/rows.ts';
import { benchHttp, httpRowNames } from '../../bench/http/run.ts';
import { readOptions } from '../options/options.ts';
import { printTable } from '../terminal/table.ts';
import { list, progress } from './options.ts';

const httpSchema = z.object({
  url: z.url({ protocol: /^https?$/, error: 'give the address of a server, like http://127.0.0.1:8000' }),
  rows: list(z.enum(httpRowNames), httpRowNames),
  model: z.string().optional(),
  apiKey: z.string().optional(),
});

export function httpCommand(): Command {
  return new Command('http')
    .requiredOption('--url <url>', 'Send requests to the server at this address')
    .option('--rows <list>', `Run these rows (default: ${httpRowNames.join(',')})`)
    .option('--model <id>', 'Request this model (default: the first that the server lists)')
    .option('--api-key <key>', 'Send this bearer token')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(httpSchema, flags);
      const onRow = (name: string, row: object): void => progress(`${name}: ${JSON.stringify(row)}`);
      const report = await benchHttp({ ...options, sizes: fullSizes, onRow });
      if (json === true) return console.log(JSON.stringify(report));
      for (const [name, row] of Object.entries(report.rows)) printTable([row], name);
    });
}
