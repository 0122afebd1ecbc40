// `kvasir generate`: one prompt, streamed to the terminal.
import { Command } from 'commander';
import { z } from 'zod';
import { addModelFlags, modelOptionsSchema, readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { ask } from '../serve/model/local-generation.ts';
import { openServing } from '../serve/open-serving.ts';
import { UsageError } from '../usage-error.ts';

export const generationSchema = modelOptionsSchema.extend({
  maxTokens: numeric(z.number().int().min(1)).optional(),
  temperature: numeric(z.number().min(0).max(2)).optional(),
  topP: numeric(z.number().gt(0).max(1)).optional(),
  seed: numeric(z.number().int()).optional(),
});

export function addGenerationFlags(command: Command): Command {
  return command
    .option('--max-tokens <n>', 'most tokens of output')
    .option('--temperature <t>', "0 is greedy (default: the model's, else 1)")
    .option('--top-p <p>', "nucleus (default: the model's, else 1)")
    .option('--seed <n>', 'the same output every time');
}

const maxTokensDefault = 256;

export function generateCommand(): Command {
  const command = addModelFlags(new Command('generate').description('complete one prompt, streaming to the terminal'));
  return addGenerationFlags(command)
    .argument('<prompt>', 'text to continue, or a message with --chat')
    .option('--chat', "wrap the prompt in the model's chat template")
    .option('--json', 'print one JSON object instead')
    .action(
      async (
        prompt: string,
        { chat, json, ...flags }: { chat?: boolean; json?: boolean } & Record<string, unknown>,
      ) => {
        const options = readOptions(generationSchema, flags);
        if (prompt === '') throw new UsageError('Cannot generate: the prompt is empty');
        const serving = await openServing(options, { queue: 1 });
        try {
          await serving.cluster.ready();
          const settings = { ...options, maxTokens: options.maxTokens ?? maxTokensDefault };
          const input = chat === true ? { messages: [{ role: 'user', content: prompt }] } : { text: prompt };
          const answer = await ask(serving, input, settings, (text) => {
            if (json !== true) process.stdout.write(text);
          });
          console.log(json === true ? JSON.stringify(answer) : '');
        } finally {
          await serving.close();
        }
      },
    );
}
