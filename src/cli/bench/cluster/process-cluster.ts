// A cluster of processes on this host with instances that can be killed: a NATS server, a gateway and instances.
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { KillableCluster } from '../../../bench/kills/kills.ts';
import { packageFile } from '../../package-root.ts';
import { killAtExit, killChild, LocalNats } from './local-nats.ts';

export interface ProcessClusterOptions {
  readonly instances: number;
  /** Per instance. */
  readonly threads: number;
  /** Undefined: the embedded model. */
  readonly model?: string | undefined;
  /** Requests accepted at once. */
  readonly queue: number;
}

export class ProcessCluster implements KillableCluster {
  readonly instances: number;
  readonly #options: ProcessClusterOptions;
  readonly #processes: ChildProcess[] = [];
  readonly #members: (ChildProcess | undefined)[] = [];
  readonly #nats: LocalNats;
  #gateway: ChildProcess | undefined;
  #url = '';

  private constructor(options: ProcessClusterOptions, nats: LocalNats) {
    this.#options = options;
    this.#nats = nats;
    this.instances = options.instances;
  }

  /** Resolves when all instances serve. @throws UsageError if nats-server is not installed */
  static async start(options: ProcessClusterOptions): Promise<ProcessCluster> {
    const cluster = new ProcessCluster(options, await LocalNats.start());
    try {
      await cluster.#start();
    } catch (error) {
      await cluster.close();
      throw error;
    }
    return cluster;
  }

  get url(): string {
    return this.#url;
  }

  async replace(instance: number): Promise<void> {
    const member = this.#members[instance];
    if (member !== undefined) await killChild(member);
    this.#members[instance] = this.#join();
  }

  residentBytes(): number | undefined {
    try {
      const status = readFileSync(`/proc/${this.#gateway?.pid}/status`, 'utf8');
      return 1024 * Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]);
    } catch {
      return undefined;
    }
  }

  /** Ends all processes. */
  async close(): Promise<void> {
    for (const child of this.#processes) await killChild(child);
    await this.#nats.close();
  }

  async #start(): Promise<void> {
    const { instances, queue } = this.#options;
    for (let i = 0; i < instances; i++) this.#members.push(this.#join());
    const flags = ['--port', '0', '--queue', String(queue), '--log-level', 'error'];
    this.#gateway = this.#run(['serve', '--drain-wait', '0', ...flags, ...this.#model()], 'pipe');
    this.#url = await addressOf(this.#gateway, 'start the cluster');
    for (let attempts = 0; (await ready(this.#url)) !== instances; attempts++) {
      if (attempts === 600)
        throw new Error(`Cannot start the cluster: ${await ready(this.#url)} of ${instances} instances serve`);
      await sleep(100);
    }
  }

  #join(): ChildProcess {
    return this.#run(['join', '--threads', String(this.#options.threads), ...this.#model()], 'ignore');
  }

  #model(): readonly string[] {
    const { model } = this.#options;
    return [...(model === undefined ? [] : ['--model', model]), '--nats', this.#nats.url];
  }

  #run(flags: readonly string[], output: 'pipe' | 'ignore'): ChildProcess {
    const command = [packageFile('bundle/cli/main.js'), ...flags];
    const child = killAtExit(spawn(process.execPath, command, { stdio: ['ignore', output, 'ignore'] }));
    this.#processes.push(child);
    return child;
  }
}

/** The command of a server that a bench starts for itself: on a free port, without the wait of a drain. */
export const serveCommand = ['serve', '--port', '0', '--drain-wait', '0', '--log-level', 'error'] as const;

/** The address that a `kvasir serve` prints. @param purpose for the error if it exits first */
export function addressOf(server: ChildProcess, purpose: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let output = '';
    server.stdout?.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      const url = /Serving on (\S+)/.exec(output)?.[1];
      if (url !== undefined) resolve(url);
    });
    server.once('exit', (code) =>
      reject(new Error(`Cannot ${purpose}: the server ended with ${code} before it served`)),
    );
  });
}

async function ready(url: string): Promise<number> {
  const health = (await (await fetch(`${url}/health`)).json()) as { instances?: { ready: number } };
  return health.instances?.ready ?? 0;
}
