// `kvasir bench pipeline`: long prompts computed by a pipeline group against one instance, as threads or as processes.

import { setTimeout as sleep } from 'node:timers/promises';
import { Command, Option } from 'commander';
import { z } from 'zod';
import { benchPipeline, type PipelineBench } from '../../bench/pipeline.ts';
import { gatewayKey } from '../../gateway/forwarding/gateway-ids.ts';
import type { ClusterGateway } from '../../runtime/processes/cluster-gateway.ts';
import {
  addFormFlags,
  type InstanceOptions,
  processTransports,
  readOptions,
  type ServeOptions,
  serveOptionsSchema,
} from '../options/options.ts';
import { ChildInstances } from '../serve/child-instances.ts';
import type { TextSide } from '../serve/model/text-side.ts';
import { openClusterGateway } from '../serve/open-cluster.ts';
import { openServing } from '../serve/open-serving.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';
import { LocalNats } from './cluster/local-nats.ts';
import { benchModelSchema, count, counts, progress } from './options.ts';

const schema = benchModelSchema.extend({
  threads: count(1),
  members: z.coerce.number().int().min(2).max(16).default(2),
  prompts: counts(256, [1024, 2048]),
  repeats: count(5),
  processes: z.boolean().default(false),
  transport: z.enum(processTransports).optional(),
});
type Options = z.infer<typeof schema>;

/** Instances of other processes report their counters at this interval. */
const reportMs = 600;

export function pipelineCommand(): Command {
  return addFormFlags(new Command('pipeline'))
    .option('--threads <n>', 'Compute with this number of threads on each instance (default: 1)')
    .option('--members <n>', 'Use groups of this number of instances (default: 2)')
    .option('--prompts <list>', 'Use prompts of these lengths, 256 or more (default: 1024,2048)')
    .option('--repeats <n>', 'Time this number of prompts of each length (default: 5)')
    .option(
      '--processes',
      'Run each instance as a process, connected by a nats-server (default: threads of one process)',
    )
    .addOption(
      new Option('--transport <way>', 'Move activations and pages between processes this way (default: auto)').choices(
        processTransports,
      ),
    )
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const { threads, members, prompts, repeats, processes, transport } = options;
      if (transport !== undefined && !processes)
        throw new UsageError(
          `Cannot use --transport ${transport}: instances of one process share memory: it needs --processes`,
        );
      const opened = await (processes ? openOnProcesses(options) : openOnThreads(options));
      try {
        const { vocabSize, id: model } = opened.model;
        const rows = await benchPipeline({ ...opened, vocabSize, prompts, repeats, onProgress: progress });
        const way = processes ? (transport ?? 'auto') : 'memory';
        if (json === true) console.log(JSON.stringify({ model, threads, members, transport: way, rows }));
        else printTable(rows, 'Time to first token, pipeline group against one instance');
      } finally {
        await opened.close();
      }
    });
}

interface Opened extends Pick<PipelineBench, 'alone' | 'group' | 'countedMs'> {
  readonly model: { readonly id: string; readonly vocabSize: number };
  close(): Promise<void>;
}

function instancesOf(prefills: number, { threads }: Options) {
  const roles = [...Array.from({ length: prefills }, () => 'prefill' as const), 'decode' as const];
  return roles.map((role) => ({ role, threads }));
}

function contextOf({ prompts }: Options): number {
  return Math.max(...prompts) + 2;
}

async function openOnThreads(options: Options): Promise<Opened> {
  const { model, weights, inputs, kvType, threads, members } = options;
  const all = { model, weights, inputs, kvType, threads, context: contextOf(options), eviction: 'lru' } as const;
  const open = (prefills: number) => {
    const pipeline = prefills === 1 ? undefined : { members, tokensOver: 0 };
    return openServing(all, { queue: 1, instances: instancesOf(prefills, options), pipeline });
  };
  const [alone, group] = [await open(1), await open(members)];
  const close = async (): Promise<void> => {
    await Promise.all([alone.close(), group.close()]);
  };
  try {
    await Promise.all([alone.cluster.ready(), group.cluster.ready()]);
    return { alone: alone.cluster, group: group.cluster, countedMs: 0, model: alone.model, close };
  } catch (error) {
    await close();
    throw error;
  }
}

async function openOnProcesses(options: Options): Promise<Opened> {
  const { model, weights, inputs, kvType, members, transport } = options;
  const all = { model, weights, inputs, kvType, transport, context: contextOf(options) };
  const closing: { close(): Promise<void> }[] = [];
  const close = async (): Promise<void> => {
    for (const each of closing.toReversed()) await each.close();
  };
  try {
    const nats = await LocalNats.start();
    closing.push(nats);
    const alone = await openProcesses(nats, 'alone', all, instancesOf(1, options));
    closing.push(alone);
    const together = { ...all, cppGroup: members, cppTokens: 0 };
    const group = await openProcesses(nats, 'group', together, instancesOf(members, options));
    closing.push(group);
    return { alone: alone.cluster, group: group.cluster, countedMs: reportMs, model: alone.model, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** A cluster: the gateway is this process, and instances are child processes. */
interface ProcessServing extends Pick<TextSide, 'model'> {
  readonly cluster: ClusterGateway;
  close(): Promise<void>;
}

type Given = Partial<Omit<ServeOptions, 'nats' | 'cluster' | 'instances'>>;

/** Resolves when all instances serve. @param name of the cluster; several may share the server @throws Error if an instance fails */
async function openProcesses(
  { url }: Pick<LocalNats, 'url'>,
  name: string,
  given: Given,
  instances: readonly InstanceOptions[],
): Promise<ProcessServing> {
  const quiet = { log: () => {}, traces: false, key: await gatewayKey(undefined) };
  const unparsed = { ...given, nats: url, cluster: name, instances, logLevel: 'error' };
  const options = serveOptionsSchema.parse(unparsed);
  const settings = instances.map(() => options);
  const children = new ChildInstances({ urls: url }, settings, instances, { log: quiet.log, exited: () => {} });
  const gateway = await openClusterGateway({ urls: url }, options, quiet);
  const close = async (): Promise<void> => {
    await Promise.all([gateway.close(), children.close()]);
  };
  try {
    await children.joined();
    while (gateway.cluster.instances().filter(({ ready }) => ready).length < instances.length) await sleep(10);
    return { model: gateway.model, cluster: gateway.cluster, close };
  } catch (error) {
    await close();
    throw error;
  }
}
