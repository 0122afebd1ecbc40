// A cluster of processes on this host, to be killed: a NATS server, a gateway, and instances.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { KillableCluster } from '../bench/kills/kills.ts';
import { packageFile } from './package-root.ts';
import { UsageError } from './usage-error.ts';

export interface ProcessClusterOptions {
  readonly instances: number;
  /** Of each instance. */
  readonly threads: number;
  /** Undefined: the embedded one. */
  readonly model?: string | undefined;
  /** Requests accepted at once. */
  readonly queue: number;
}

export class ProcessCluster implements KillableCluster {
  readonly instances: number;
  readonly #options: ProcessClusterOptions;
  readonly #folder = mkdtempSync(join(tmpdir(), 'kvasir-cluster-'));
  readonly #processes: ChildProcess[] = [];
  readonly #members: (ChildProcess | undefined)[] = [];
  #nats = '';
  #gateway: ChildProcess | undefined;
  #url = '';

  private constructor(options: ProcessClusterOptions) {
    this.#options = options;
    this.instances = options.instances;
  }

  /** Resolves when all instances serve. @throws UsageError where there is no NATS server to start */
  static async start(options: ProcessClusterOptions): Promise<ProcessCluster> {
    if (spawnSync('nats-server', ['--version']).status !== 0)
      throw new UsageError('Cannot start the cluster: nats-server is not installed');
    const cluster = new ProcessCluster(options);
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
    const ended = member && once(member, 'exit');
    member?.kill('SIGKILL');
    await ended;
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
    for (const child of this.#processes) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #start(): Promise<void> {
    const { instances, queue } = this.#options;
    const port = await freePort();
    this.#nats = `nats://127.0.0.1:${port}`;
    this.#processes.push(
      spawn('nats-server', ['-js', '-a', '127.0.0.1', '-p', String(port), '-sd', this.#folder], { stdio: 'ignore' }),
    );
    for (let tries = 0; !(await answers(port)); tries++) {
      if (tries === 200) throw new Error('Cannot start the cluster: the NATS server does not answer');
      await sleep(25);
    }
    for (let i = 0; i < instances; i++) this.#members.push(this.#join());
    const flags = ['--port', '0', '--queue', String(queue), '--log-level', 'error'];
    this.#gateway = this.#run(['serve', ...flags, ...this.#model()], 'pipe');
    this.#url = await addressOf(this.#gateway);
    for (let tries = 0; (await ready(this.#url)) !== instances; tries++) {
      if (tries === 600)
        throw new Error(`Cannot start the cluster: ${await ready(this.#url)} of ${instances} instances serve`);
      await sleep(100);
    }
  }

  #join(): ChildProcess {
    return this.#run(['join', '--threads', String(this.#options.threads), ...this.#model()], 'ignore');
  }

  #model(): readonly string[] {
    const { model } = this.#options;
    return [...(model === undefined ? [] : ['--model', model]), '--nats', this.#nats];
  }

  #run(flags: readonly string[], output: 'pipe' | 'ignore'): ChildProcess {
    const child = spawn(process.execPath, [packageFile('dist/cli/main.js'), ...flags], {
      stdio: ['ignore', output, 'ignore'],
    });
    this.#processes.push(child);
    return child;
  }
}

function addressOf(gateway: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    let said = '';
    gateway.stdout?.setEncoding('utf8').on('data', (text: string) => {
      said += text;
      const url = /Serving on (\S+)/.exec(said)?.[1];
      if (url !== undefined) resolve(url);
    });
    gateway.once('exit', (code) => reject(new Error(`Cannot start the cluster: the gateway ended with ${code}`)));
  });
}

async function ready(url: string): Promise<number> {
  const health = (await (await fetch(`${url}/health`)).json()) as { instances?: { ready: number } };
  return health.instances?.ready ?? 0;
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
      .once('connect', () => {
        socket.destroy();
        resolve(true);
      })
      .once('error', () => resolve(false));
  });
}
