// `kvasir bench messenger`: pages over tcp and over shared memory against a bare socket loop on the loopback interface.
import { Command } from 'commander';
import { z } from 'zod';
import { benchMessenger } from '../../bench/messenger.ts';
import { readOptions } from '../options/options.ts';
import { createBackend } from '../serve/backend.ts';
import { printTable } from '../simulate/table.ts';
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
    .description(
      'pages over tcp and shared memory, checked and acknowledged, against a bare socket loop in the same run',
    )
    .option('--pages <list>', 'KiB of a page, multiples of 8 (default: 16,64,256)')
    .option('--frames <list>', 'KiB of pages sent in one frame (default: 64,256,1024)')
    .option('--mebibytes <n>', 'brought each time (default: 64)')
    .option('--repeats <n>', 'rounds, in each of which all take turns (default: 21)')
    .option('--cores <n>', 'of sender and receiver: 2 apart, 1 shared, 0 as the scheduler likes (default: 2)')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const backend = createBackend(1);
      try {
        const rows = await benchMessenger(backend, { ...options, onProgress: progress });
        if (json === true)
          console.log(JSON.stringify({ isa: backend.isa, mebibytes: options.mebibytes, cores: options.cores, rows }));
        else printTable(rows.map((row) => ({ ...row })));
      } finally {
        backend.close();
      }
    });
}
