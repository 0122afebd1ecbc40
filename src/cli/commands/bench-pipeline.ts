// `kvasir bench pipeline`: long prompts computed by a group of instances of a process against one of them alone.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { benchPipeline } from '../../bench/pipeline.ts';
import { inputForms, weightsForms } from '../../engine/forms.ts';
import { openServing } from '../open-serving.ts';
import { modelFlag, modelOptionsSchema, readOptions } from '../options.ts';
import { printTable } from '../table.ts';
import { counts, progress } from './bench-options.ts';

const schema = modelOptionsSchema.pick({ model: true, weights: true, inputs: true }).extend({
  threads: z.coerce.number().int().min(1).default(1),
  members: z.coerce.number().int().min(2).max(16).default(2),
  prompts: counts(256, [1024, 2048]),
  repeats: z.coerce.number().int().min(1).default(5),
});

export function pipelineCommand(): Command {
  return new Command('pipeline')
    .description('time to the first token with prompts computed by a group of instances against one of them alone')
    .addOption(modelFlag())
    .addOption(new Option('--weights <form>', 'weights in memory (default: native)').choices(weightsForms))
    .addOption(new Option('--inputs <form>', 'rounding of linear inputs (default: bf16)').choices(inputForms))
    .option('--threads <n>', 'compute threads of each instance (default: 1)')
    .option('--members <n>', 'instances of the group (default: 2)')
    .option('--prompts <list>', 'lengths of prompts, 256 or more (default: 1024,2048)')
    .option('--repeats <n>', 'prompts of each length (default: 5)')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { prompts, repeats, members, ...own } = readOptions(schema, flags);
      const options = { ...own, context: Math.max(...prompts) + 2, eviction: 'lru' } as const;
      const open = (prefills: number) => {
        const roles = [...Array.from({ length: prefills }, () => 'prefill' as const), 'decode' as const];
        const instances = roles.map((role) => ({ role, threads: own.threads }));
        const pipeline = prefills === 1 ? undefined : { members, tokensOver: 0 };
        return openServing(options, { queue: 1, instances, pipeline });
      };
      const servings = [await open(1), await open(members)];
      const [alone, group] = servings;
      try {
        await Promise.all(servings.map(({ cluster }) => cluster.ready()));
        const rows = await benchPipeline({
          ...{ alone: alone.cluster, group: group.cluster, vocabSize: alone.model.vocabSize },
          ...{ prompts, repeats, onProgress: progress },
        });
        if (json === true) console.log(JSON.stringify({ model: alone.model.id, threads: own.threads, members, rows }));
        else printTable(rows.map((row) => ({ ...row })));
      } finally {
        await Promise.all(servings.map((serving) => serving.close()));
      }
    });
}
