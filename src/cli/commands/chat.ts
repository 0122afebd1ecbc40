// `kvasir chat`: a conversation in the terminal.
import { createInterface } from 'node:readline/promises';
import { Command } from 'commander';
import type { ChatMessage } from '../../text/template/chat-template.ts';
import { addModelFlags, readOptions } from '../options/options.ts';
import { describeInstances } from '../serve/describe-instances.ts';
import { generateText } from '../serve/model/local-generation.ts';
import { openServing } from '../serve/open-serving.ts';
import { addGenerationFlags, generationSchema } from './generate.ts';

export function chatCommand(): Command {
  const command = addModelFlags(
    new Command('chat').description('Chat with a model in the terminal; /reset starts a new conversation, /exit ends'),
  );
  return addGenerationFlags(command)
    .option('--system <text>', 'Start the conversation with this system message')
    .action(async ({ system, ...flags }: { system?: string } & Record<string, unknown>) => {
      const options = readOptions(generationSchema, flags);
      const serving = await openServing(options, { queue: 1 });
      try {
        console.log(describeInstances(serving.model.id, await serving.cluster.ready()));
        const beginning: ChatMessage[] = system === undefined ? [] : [{ role: 'system', content: system }];
        let messages = [...beginning];
        for await (const line of lines()) {
          if (line === '/exit') break;
          if (line === '/reset') messages = [...beginning];
          if (line === '' || line.startsWith('/')) continue;
          messages.push({ role: 'user', content: line });
          const { text } = await generateText(serving, { messages }, options, (piece) => process.stdout.write(piece));
          messages.push({ role: 'assistant', content: text });
          console.log();
        }
      } finally {
        await serving.close();
      }
    });
}

/** Trimmed lines of the terminal, each after a prompt; ends with the input. */
async function* lines(): AsyncGenerator<string> {
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  terminal.setPrompt('> ');
  terminal.prompt();
  for await (const line of terminal) {
    yield line.trim();
    terminal.prompt();
  }
}
