// `kvasir bench tiers`: time to first token with the prefix in the KV pool, in host memory, on SSD, or not cached, and what storing costs.
import { tmpdir } from 'node:os';
import { Command } from 'commander';
import { z } from 'zod';
import { benchTiers } from '../../bench/tiers.ts';
import { pageTokens } from '../../util/step.ts';
import { addFormFlags, readOptions } from '../options/options.ts';
import { temporaryFolder } from '../serve/exit-cleanup.ts';
import { openServing } from '../serve/open-serving.ts';
import { printTable } from '../terminal/table.ts';
import { benchModelSchema, blockBytesOf, count, progress } from './options.ts';

const schema = benchModelSchema.extend({
  threads: count(1),
  prompt: count(400),
  repeats: count(3),
  folder: z.string().min(1).default(tmpdir()),
});

export function tiersCommand(): Command {
  return addFormFlags(new Command('tiers'))
    .option('--threads <n>', 'Compute with this number of threads (default: 1)')
    .option('--prompt <tokens>', 'Use prompts of this length (default: 400)')
    .option('--repeats <n>', 'Time this number of prompts, after two to warm up (default: 3)')
    .option('--folder <path>', "Keep the SSD tier in this folder (default: the system's temporary folder)")
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { prompt, repeats, folder, ...own } = readOptions(schema, flags);
      const ssd = temporaryFolder('tiers', folder);
      const blockBytes = await blockBytesOf(own);
      const blocks = Math.ceil((prompt + 1) / pageTokens);
      const options = { ...own, context: prompt + 1, eviction: 'lru', kvMemory: (blocks + 2) * blockBytes } as const;
      const hostMemory = Math.ceil(2.5 * blocks) * blockBytes;
      const ssdSize = (repeats + 1) * 6 * blocks * (blockBytes + 4096);
      try {
        const serving = await openServing(options, { queue: 1, hostMemory, ssd: ssd.path, ssdSize });
        try {
          const plain = await openServing(options, { queue: 1 });
          try {
            await Promise.all([serving.cluster.ready(), plain.cluster.ready()]);
            const sides = { port: serving.cluster, plain: plain.cluster };
            const sizes = { vocabSize: serving.model.vocabSize, prompt, blockTokens: pageTokens, blockBytes, repeats };
            const rows = await benchTiers({ ...sides, ...sizes, onProgress: progress });
            const { copiedBytes = 0, storedEarlyBytes = 0 } = serving.cluster.snapshot().tiers?.moved ?? {};
            const model = serving.model.id;
            if (json === true)
              console.log(JSON.stringify({ model, threads: own.threads, rows, copiedBytes, storedEarlyBytes }));
            else printTable(rows, 'Time to first token by the tier of the prefix');
          } finally {
            await plain.close();
          }
        } finally {
          await serving.close();
        }
      } finally {
        ssd.remove();
      }
    });
}
