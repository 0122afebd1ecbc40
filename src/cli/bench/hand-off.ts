// `kvasir bench hand-off`: prefill and decode on two instances of a process against one instance.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { benchHandOff } from '../../bench/hand-off.ts';
import { addFormFlags, readOptions, transports } from '../options/options.ts';
import { openServing } from '../serve/open-serving.ts';
import { printTable } from '../terminal/table.ts';
import { benchModelSchema, count, counts, progress } from './options.ts';

const schema = benchModelSchema.extend({
  threads: count(1),
  prompts: counts(1, [128, 400]),
  repeats: count(5),
  transport: z.enum(transports).default('memory'),
});

export function handOffCommand(): Command {
  return addFormFlags(new Command('hand-off'))
    .option('--threads <n>', 'Compute with this number of threads on each instance (default: 1)')
    .option('--prompts <list>', 'Use prompts of these lengths (default: 128,400)')
    .option('--repeats <n>', 'Time this number of prompts of each length (default: 5)')
    .addOption(new Option('--transport <way>', 'Move pages this way (default: memory)').choices(transports))
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { prompts, repeats, transport, ...own } = readOptions(schema, flags);
      const options = { ...own, context: Math.max(...prompts) + 2, eviction: 'lru' } as const;
      const open = (roles: readonly ('mixed' | 'prefill' | 'decode')[], sendsAtEnd = false) => {
        const instances = roles.map((role) => ({ role, threads: own.threads }));
        return openServing(options, { queue: 1, instances, transport, sendsAtEnd, traces: true });
      };
      const disaggregated = ['prefill', 'decode'] as const;
      const servings = [await open(['mixed']), await open(disaggregated), await open(disaggregated, true)];
      const [alone, pair, atEnd] = servings;
      try {
        await Promise.all(servings.map(({ cluster }) => cluster.ready()));
        const rows = await benchHandOff({
          ...{ alone: alone.cluster, pair: pair.cluster, atEnd: atEnd.cluster },
          ...{ vocabSize: alone.model.vocabSize },
          ...{ prompts, repeats, onProgress: progress },
        });
        if (json === true)
          console.log(JSON.stringify({ model: alone.model.id, threads: own.threads, transport, rows }));
        else printTable(rows, 'Time to first token with prefill and decode on two instances');
      } finally {
        await Promise.all(servings.map((serving) => serving.close()));
      }
    });
}
