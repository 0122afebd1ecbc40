// `kvasir serve`: loads a model, listens, and drains on SIGTERM or SIGINT.
import { Command } from 'commander';
import { pino } from 'pino';
import type { ServedModel } from '../../gateway/served-model.ts';
import { type Gateway, listen } from '../../gateway/server.ts';
import type { LiveCluster } from '../../live/live-cluster.ts';
import type { InstanceDescription } from '../../live/protocol.ts';
import { answerMemoryQuestions } from '../memory-questions.ts';
import { openServing, type Serving } from '../open-serving.ts';
import { addModelFlags, readOptions, type ServeOptions, serveOptionsSchema } from '../options.ts';

const streamBufferBytesMax = 2 ** 20;
const drainGraceMs = 30_000;

export function serveCommand(): Command {
  return addModelFlags(new Command('serve').description('serve a model over an OpenAI-compatible endpoint'))
    .option('--instances <n>', 'instances that serve, each on a thread of its own over the same weights (default: 1)')
    .option('--host <address>', 'address to listen on (default: 127.0.0.1)')
    .option('--port <n>', 'port to listen on, 0 for any (default: 8000)')
    .option('--api-key <key...>', 'keys that clients must send one of (default: none needed)')
    .option('--served-model-name <id>', "model id for clients (default: the file's or folder's stem)")
    .option('--queue <n>', 'requests accepted at once; past it clients get 429 (default: 256)')
    .option('--cors-origin <origin...>', 'browser origins that may call (default: none)')
    .option('--body-limit <size>', 'largest request body (default: 16m)')
    .option('--log-level <level>', 'debug, info, warn, error or silent (default: info)')
    .action(async (flags: Record<string, unknown>) => {
      const options = readOptions(serveOptionsSchema, flags);
      const serving = await openServing(options, options);
      try {
        const gateway = await openGateway(serving, options);
        try {
          answerMemoryQuestions(options.instances.length);
          announce(serving.model, await serving.cluster.ready(), gateway, options);
          await served(serving.cluster);
        } finally {
          await gateway.drain(drainGraceMs);
        }
      } finally {
        await serving.close();
      }
    });
}

/** @throws Error when host and port cannot be listened on */
function openGateway({ model, cluster, encode }: Serving, options: ServeOptions): Promise<Gateway> {
  const settings = {
    model,
    port: cluster,
    encode,
    logger: pino({ level: options.logLevel }, pino.destination({ dest: 2, sync: false })),
    apiKeys: options.apiKey,
    corsOrigins: options.corsOrigin,
    bodyBytesMax: options.bodyLimit,
    streamBufferBytesMax,
    choicesMax: options.queue,
  };
  return listen(settings, options.host, options.port);
}

function announce(
  model: ServedModel,
  instances: readonly InstanceDescription[],
  gateway: Gateway,
  options: ServeOptions,
): void {
  const url = `http://${gateway.host.includes(':') ? `[${gateway.host}]` : gateway.host}:${gateway.port}`;
  console.log(describeInstances(model.id, instances));
  console.log(`Serving on ${url}`);
  // The key itself is not for logs.
  const key = options.apiKey.length === 0 ? '' : ' -H "authorization: Bearer $KEY"';
  const [path, fields] =
    model.chatTemplate === undefined
      ? ['completions', model.tokenizer === undefined ? '"prompt": [1, 2, 3]' : '"prompt": "Once upon a time"']
      : ['chat/completions', '"messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]'];
  console.log(
    `Try: curl ${url}/v1/${path}${key} -H 'content-type: application/json' -d '{"model": "${model.id}", ${fields}}'`,
  );
}

export function describeInstances(id: string, instances: readonly InstanceDescription[]): string {
  const [first] = instances;
  if (first === undefined) throw new Error(`Cannot describe model ${id}: no instance serves it`);
  const { weights, inputs, isa, weightBytes, contextTokens } = first;
  const kernels = isa === 'reference' ? 'none (TypeScript oracle)' : isa;
  const model =
    `Model ${id}: weights ${weights} (${megabytes(weightBytes)}), inputs ${inputs}, instruction set ${kernels}, ` +
    `context ${contextTokens} tokens`;
  if (instances.length === 1) return `${model}, ${describeShare(first)}`;
  return [model, ...instances.map((instance, i) => `Instance ${i}: ${instance.role}, ${describeShare(instance)}`)].join(
    '\n',
  );
}

function describeShare({ threads, kvBytes }: InstanceDescription): string {
  return `${threads} threads, KV ${megabytes(kvBytes)}`;
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(0)} MB`;
}

/** Resolves when the server is asked to stop. @throws Error when it can serve no more */
async function served(cluster: LiveCluster): Promise<void> {
  const end = await Promise.race([stopSignal(), cluster.ended]);
  if (end !== 'stop') throw new Error('Cannot go on serving: no instance is left; the lines above say why');
  console.log('Draining: running requests finish, new ones are refused');
}

function stopSignal(): Promise<'stop'> {
  return new Promise((resolve) => {
    const stop = (): void => resolve('stop');
    process.once('SIGTERM', stop);
    process.once('SIGINT', stop);
  });
}
