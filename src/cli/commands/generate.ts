// `kvasir generate`: one prompt, streamed to the terminal.
import { text } from 'node:stream/consumers';
import { Command } from 'commander';
import { z } from 'zod';
import { addModelFlags, modelOptionsSchema, readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { generateText } from '../serve/model/local-generation.ts';
import { openServing } from '../serve/open-serving.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';

export const generationSchema = modelOptionsSchema.extend({
  maxTokens: numeric(z.number().int().min(1)).optional(),
  temperature: numeric(z.number().min(0).max(2)).optional(),
  topP: numeric(z.number().gt(0).max(1)).optional(),
  seed: numeric(z.number().int()).optional(),
});

export function addGenerationFlags(command: Command): Command {
  return command
    .optionsGroup(groups.generation)
    .option('--max-tokens <n>', 'Generate at most this number of tokens')
    .option('--temperature <t>', "Sample at this temperature; 0 is greedy (default: the model's, else 0.7)")
    .option('--top-p <p>', "Sample from the nucleus of this probability (default: the model's, else 1)")
    .option('--seed <n>', 'Seed the sampler; equal seeds give equal outputs');
}

const maxTokensDefault = 256;

export function generateCommand(): Command {
  const command = addModelFlags(new Command('generate'));
  return addGenerationFlags(command)
    .argument('<prompt>', 'Message to answer, or text to continue; - reads it from stdin')
    .option('--raw', 'Continue the prompt as it is, without the chat template of the model')
    .option('--json', 'Print one JSON object instead')
    .action(
      async (
        argument: string,
        { raw, json, ...flags }: { raw?: boolean; json?: boolean } & Record<string, unknown>,
      ) => {
        const options = readOptions(generationSchema, flags);
        const prompt = argument === '-' ? (await text(process.stdin)).replace(/\r?\n$/, '') : argument;
        if (prompt === '') throw new UsageError('Cannot generate: the prompt is empty');
        const serving = await openServing(options, { queue: 1 });
        try {
          await serving.cluster.ready();
          const settings = { ...options, maxTokens: options.maxTokens ?? maxTokensDefault };
          const wraps = raw !== true && serving.model.chatTemplate !== undefined;
          const input = wraps ? { messages: [{ role: 'user', content: prompt }] } : { text: prompt };
          const answer = await generateText(serving, input, settings, (piece) => {
            if (json !== true) process.stdout.write(piece);
          });
          console.log(json === true ? JSON.stringify(answer) : '');
        } finally {
          await serving.close();
        }
      },
    );
}
