// `kvasir bench messenger`: KV pages over TCP and shared memory against a bare socket loop on the loopback interface.
import { Command } from 'commander';
import { z } from 'zod';
import { benchMessenger } from '../../bench/messenger.ts';
import { readOptions } from '../options/options.ts';
import { createBackend } from '../serve/backend.ts';
import { printTable } from '../terminal/table.ts';
import { counts, progress } from './options.ts';

const pageKiB = counts(8, [16, 64, 256]).refine((all) => all.every((one) => one % 8 === 0), 'multiples of 8');

const schema = z.object({
  pages: pageKiB,
  frames: counts(1, [64, 256, 1024]),
  mebibytes: z.coerce.number().int().min(1).max(1024).default(64),
  repeats: z.coerce.number().int().min(1).default(21),
  cores: z.coerce.number().int().min(0).max(2).default(2),
});

export function messengerCommand(): Command {
  return new Command('messenger')
    .option('--pages <list>', 'Use pages of these sizes in KiB, multiples of 8 (default: 16,64,256)')
    .option('--frames <list>', 'Send these amounts of pages per frame, in KiB (default: 64,256,1024)')
    .option('--mebibytes <n>', 'Transfer this amount in each measurement (default: 64)')
    .option('--repeats <n>', 'Run this number of rounds of alternating measurements (default: 21)')
    .option('--cores <n>', 'Run sender and receiver on 2 cores, on 1, or with 0 unpinned (default: 2)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const backend = createBackend(1);
      try {
        const rows = await benchMessenger(backend, { ...options, onProgress: progress });
        if (json === true)
          console.log(JSON.stringify({ isa: backend.isa, mebibytes: options.mebibytes, cores: options.cores, rows }));
        else printTable(rows, 'Throughput of KV pages');
      } finally {
        backend.close();
      }
    });
}
