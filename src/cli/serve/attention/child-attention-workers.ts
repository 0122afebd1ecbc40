// Attention workers as child processes that run `kvasir join --role attention`, restarted at their ports when they exit.
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { RestartedProcess } from '../../../runtime/processes/restarted-process.ts';
import type {
  AttentionWorkerAddresses,
  AttentionWorkersSettings,
  ServedAttentionWorkers,
} from '../../options/attention-worker-settings.ts';
import { type ModelOptions, toFlag } from '../../options/options.ts';
import type { AttentionWorkerMessage } from './serve-attention-worker.ts';

const command = fileURLToPath(new URL('../../main.js', import.meta.url));

type Child = RestartedProcess<AttentionWorkerMessage>;

class ChildAttentionWorkers {
  /** The addresses, in the order of the shards, and the secret of the processes. */
  readonly settings: AttentionWorkerAddresses;
  readonly #children: readonly Child[];

  private constructor(children: readonly Child[], addresses: readonly string[], token: string) {
    this.#children = children;
    this.settings = { addresses, token };
  }

  /** @throws Error if a process exits at its start; it has printed the reason */
  static async start(
    options: ModelOptions,
    {
      processes: workers,
      partition,
      attentionThreads,
      transport,
    }: Extract<ServedAttentionWorkers, { readonly processes: number }>,
    log: (line: string) => void,
  ) {
    const token = randomBytes(16).toString('hex');
    const flags = flagsOf(options, workers, attentionThreads ?? options.threads, transport);
    const children = Array.from({ length: workers }, (_, i) => {
      const place = `${i + 1}/${workers}`;
      return startChild(place, partition === 'heads' ? place : '1/1', flags, token, log);
    });
    try {
      const addresses = await Promise.all(children.map(async ({ ready }) => (await ready).address));
      return new ChildAttentionWorkers(children, addresses, token);
    } catch (error) {
      await Promise.all(children.map((child) => child.close()));
      throw error;
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#children.map((child) => child.close()));
  }
}

/** Starts the attention workers that are child processes. @throws Error as `ChildAttentionWorkers.start` */
export async function startedAttentionWorkers(
  options: ModelOptions,
  workers: ServedAttentionWorkers,
  log: (line: string) => void,
): Promise<{ readonly settings: AttentionWorkersSettings; close(): Promise<void> }> {
  if (!('processes' in workers)) return { settings: workers, close: async () => {} };
  const children = await ChildAttentionWorkers.start(options, workers, log);
  const { processes, ...shared } = workers;
  return { settings: { ...children.settings, ...shared }, close: () => children.close() };
}

/** The workers compute at the same time, and share the memory. */
function flagsOf(
  options: ModelOptions,
  workers: number,
  threadsOfAll: number,
  transport: ServedAttentionWorkers['transport'],
): readonly string[] {
  const { model, weights, inputs, kvType, context, kvMemory } = options;
  const threads = Math.max(1, Math.floor(threadsOfAll / workers));
  const ownMemory = kvMemory && Math.floor(kvMemory / workers);
  const given = { model, weights, inputs, kvType, context, threads, kvMemory: ownMemory, transport };
  return Object.entries(given).flatMap(([name, value]) =>
    value === undefined ? [] : [`--${toFlag(name)}`, String(value)],
  );
}

/** It listens at the same address after a restart. */
function startChild(
  place: string,
  shard: string,
  flags: readonly string[],
  token: string,
  log: (line: string) => void,
): Child {
  let port = 0;
  return new RestartedProcess<AttentionWorkerMessage>({
    name: `Attention worker ${place}`,
    command: () => [command, 'join', '--role', 'attention', '--shard', shard, '--pages-port', String(port), ...flags],
    // An attention worker is no member of a cluster.
    env: { KVASIR_TOKEN: token, KVASIR_NATS: undefined },
    ready: ({ address }) => {
      port = Number(address.slice(address.lastIndexOf(':') + 1));
      return `listens at ${address}`;
    },
    killAfterMs: 0,
    log,
  });
}
