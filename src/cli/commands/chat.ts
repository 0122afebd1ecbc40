// `kvasir chat`: a conversation in the terminal, with a model of this process or of a server.
import { Command } from 'commander';
import type { z } from 'zod';
import { addModelFlags, readOptions } from '../options/options.ts';
import { describeInstances } from '../serve/describe-instances.ts';
import { generateText } from '../serve/model/local-generation.ts';
import { openRemoteChat } from '../serve/model/remote-chat.ts';
import { openServing } from '../serve/open-serving.ts';
import { ChatSession } from '../terminal/chat-session.ts';
import { UsageError } from '../usage-error.ts';
import { addGenerationFlags, generationSchema } from './generate.ts';

interface ChatFlags extends Record<string, unknown> {
  readonly system?: string;
  readonly url?: string;
  readonly apiKey?: string;
}

type GenerationOptions = z.infer<typeof generationSchema>;

export function chatCommand(): Command {
  const command = addModelFlags(new Command('chat'));
  return addGenerationFlags(command)
    .option('--system <text>', 'Start the conversation with this system message')
    .option(
      '--url <url>',
      'Chat with the server at this address; its defaults apply, and --model selects one of its models',
    )
    .option('--api-key <key>', 'Send this key to the server of --url')
    .action(async ({ system, url, apiKey, ...flags }: ChatFlags) => {
      const options = readOptions(generationSchema, flags);
      if (url === undefined) await chatHere(options, system);
      else await chatThere(url, apiKey, options, system);
    });
}

const terminal = () => ({
  input: process.stdin,
  output: process.stdout,
  isTyped: process.stdin.isTTY === true && process.stdout.isTTY === true,
});

async function chatThere(
  url: string,
  apiKey: string | undefined,
  options: GenerationOptions,
  system: string | undefined,
): Promise<void> {
  if (!/^https?:\/\/\S+$/.test(url)) throw new UsageError(`Cannot use --url ${url}: write http://HOST:PORT`);
  const remote = await openRemoteChat({ url, apiKey }, options, options.model);
  console.log(`Model ${remote.model} at ${url}; /help lists the commands`);
  await new ChatSession(remote, terminal(), system).run();
}

async function chatHere(options: GenerationOptions, system: string | undefined): Promise<void> {
  const serving = await openServing(options, { queue: 1 });
  try {
    const { model } = serving;
    if (model.tokenizer === undefined) throw new UsageError(`Cannot chat: model '${model.id}' has no tokenizer`);
    if (model.chatTemplate === undefined)
      throw new UsageError(`Cannot chat: model '${model.id}' has no chat template; kvasir generate continues a text`);
    console.log(describeInstances(model.id, await serving.cluster.ready()));
    const session = new ChatSession(
      {
        answer: async (messages, signal, onText) =>
          (await generateText(serving, { messages }, options, onText, signal)).text,
      },
      terminal(),
      system,
    );
    await session.run();
  } finally {
    await serving.close();
  }
}
