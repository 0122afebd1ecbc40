// Flags of attention workers for `serve` and `join`, and the schema of their values.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { kvPartitions } from '../../core/attention-workers/choose-worker.ts';
import { attentionForms } from '../../kernel/native/attention-workers.ts';
import { groups } from '../terminal/help.ts';
import { numeric } from './schema-parts.ts';

const address = /^[\w.:-]+:\d{1,5}$/;

export const dopFields = {
  dop: z
    .string()
    .regex(/^(auto|[1-9]\d?,[1-9]\d?)$/, 'write MODEL,ATTENTION, for example 1,2, or auto')
    .optional(),
  attentionWorkers: z
    .union(
      [
        z.literal(['threads', 'processes']),
        z
          .union([z.string().transform((text) => text.split(',').map((part) => part.trim())), z.array(z.string())])
          .pipe(z.array(z.string().regex(address)).min(1)),
      ],
      'write threads, processes, or HOST:PORT,HOST:PORT',
    )
    .optional(),
  attentionThreads: numeric(z.number().int().min(1).max(1024)).optional(),
  staggeredBatches: numeric(z.number().int().min(1).max(2)).optional(),
  moveShardsAfter: numeric(z.number().min(0)).optional(),
  partition: z.enum(kvPartitions).default('heads'),
  attentionForm: z.enum(attentionForms).default('ranges'),
};

/** I/N as index from 0 and number of workers. */
export const shard = z
  .string()
  .regex(/^[1-9]\d?\/[1-9]\d?$/, 'write I/N, for example 1/2')
  .transform((text) => {
    const [place, workers] = text.split('/').map(Number);
    return { index: place - 1, workers };
  })
  .refine(({ index, workers }) => index < workers, 'I is at most N')
  .optional();

export function addDopFlags(command: Command): Command {
  return command
    .optionsGroup(groups.cluster)
    .option(
      '--dop <model,attention>',
      'Keep KV pages at attention workers, apart from model workers, with these numbers of both, for example 1,2; auto: with those that decode fastest on the threads of this machine, or none (default: off)',
    )
    .option(
      '--attention-workers <where>',
      'Run attention workers as threads or processes, or use those of `join --role attention` at HOST:PORT,... (default: threads)',
    )
    .option(
      '--attention-threads <n>',
      'Give attention workers of this machine this number of the threads, and model workers the others (default: all threads to both)',
    )
    .option(
      '--staggered-batches <n>',
      'Run the sequences of a step as this number of batches, 1 or 2, with one model worker: attention of one overlaps the other (default: 1)',
    )
    .option(
      '--move-shards-after <s>',
      'Move the shard of an attention worker that does not return within this time to another one (default: wait)',
    )
    .addOption(
      new Option(
        '--partition <by>',
        'Give each attention worker a shard of the KV heads of all sequences, or some sequences whole (default: heads)',
      ).choices(kvPartitions),
    )
    .addOption(
      new Option(
        '--attention-form <form>',
        'Compute attention in ranges, with the bits of one instance, or as the sum of earlier keys and the new key (default: ranges)',
      ).choices(attentionForms),
    );
}
