// A cluster of processes on this host with instances that can be killed: a NATS server, a gateway and instances.
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { KillableCluster, ProcessFault } from '../../../bench/kills/kills.ts';
import { assertNever } from '../../../util/assert-never.ts';
import { packageFile } from '../../package-root.ts';
import { freePort, killAtExit, killChild, LocalNats } from './local-nats.ts';

export interface ProcessClusterOptions {
  readonly instances: number;
  /** Undefined: one. */
  readonly gateways?: number | undefined;
  /** Per instance. */
  readonly threads: number;
  /** Undefined: the embedded model. */
  readonly model?: string | undefined;
  /** Requests accepted at once. */
  readonly queue: number;
}

/** A stopped process continues after this time: longer than the others wait for its heartbeats. */
const hangMs = 8_000;

export class ProcessCluster implements KillableCluster {
  readonly instances: number;
  readonly #options: ProcessClusterOptions;
  readonly #processes = new Set<ChildProcess>();
  readonly #members: (ChildProcess | undefined)[] = [];
  readonly #nats: LocalNats;
  readonly #gateways: { readonly port: number; process: ChildProcess }[] = [];

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

  get urls(): readonly string[] {
    return this.#gateways.map(({ port }) => `http://127.0.0.1:${port}`);
  }

  async inject(fault: ProcessFault, which: number): Promise<void> {
    const member = this.#members[which];
    switch (fault) {
      case 'instance':
        if (member !== undefined) await killChild(member);
        this.#members[which] = this.#join();
        break;
      case 'gateway': {
        const gateway = this.#gateways[which];
        if (gateway === undefined) return;
        await killChild(gateway.process);
        gateway.process = this.#serve(gateway.port);
        await addressOf(gateway.process, 'restart a gateway');
        break;
      }
      case 'nats':
        await this.#nats.restart();
        break;
      case 'hang':
        member?.kill('SIGSTOP');
        await sleep(hangMs);
        member?.kill('SIGCONT');
        break;
      default:
        assertNever(fault);
    }
  }

  residentBytes(): readonly (readonly [role: string, bytes: number])[] {
    const pids = [
      ...this.#gateways.map(({ process }) => ['gateway', process.pid] as const),
      ...this.#members.map((member) => ['instance', member?.pid] as const),
      ['NATS', this.#nats.pid] as const,
    ];
    return pids.flatMap(([role, pid]) => {
      const bytes = residentBytesOf(pid);
      return bytes === undefined ? [] : [[role, bytes] as const];
    });
  }

  /** Ends all processes. */
  async close(): Promise<void> {
    for (const child of this.#processes) await killChild(child);
    await this.#nats.close();
  }

  async #start(): Promise<void> {
    const { instances, gateways = 1 } = this.#options;
    for (let i = 0; i < instances; i++) this.#members.push(this.#join());
    for (let i = 0; i < gateways; i++) {
      const port = await freePort();
      const gateway = { port, process: this.#serve(port) };
      this.#gateways.push(gateway);
      const url = await addressOf(gateway.process, 'start the cluster');
      for (let attempts = 0; (await ready(url)) !== instances; attempts++) {
        if (attempts === 600)
          throw new Error(`Cannot start the cluster: ${await ready(url)} of ${instances} instances serve`);
        await sleep(100);
      }
    }
  }

  #serve(port: number): ChildProcess {
    const flags = ['--port', String(port), '--queue', String(this.#options.queue), '--log-level', 'error'];
    return this.#run(['serve', '--drain-wait', '0', ...flags, ...this.#model()], 'pipe');
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
    this.#processes.add(child);
    child.once('exit', () => this.#processes.delete(child));
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

function residentBytesOf(pid: number | undefined): number | undefined {
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    const kilobytes = /VmRSS:\s+(\d+)/.exec(status)?.[1];
    return kilobytes === undefined ? undefined : 1024 * Number(kilobytes);
  } catch {
    return undefined;
  }
}

async function ready(url: string): Promise<number> {
  const health = (await (await fetch(`${url}/health`)).json()) as { instances?: { ready: number } };
  return health.instances?.ready ?? 0;
}
