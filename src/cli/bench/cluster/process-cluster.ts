// A cluster of processes on this host with instances that can be killed: a NATS server, a gateway and instances.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { KillableCluster, ProcessFault } from '../../../bench/kills/kills.ts';
import type { InstanceRole } from '../../../core/protocol/instance-report.ts';
import { assertNever } from '../../../util/assert-never.ts';
import { packageFile } from '../../package-root.ts';
import { InjectedFaults } from './injected-faults.ts';
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
  /** Faults that will be injected. */
  readonly faults: readonly ProcessFault[];
  /** (instances); undefined: all are mixed. */
  readonly roles?: readonly InstanceRole[] | undefined;
  /** More flags of gateways. */
  readonly serveFlags?: readonly string[] | undefined;
}

/** A paused process continues after this time: longer than the others wait for its heartbeats. */
const pauseMs = 8_000;
/** Longer than instances wait for a read before the disk counts as absent. */
const diskMs = 8_000;
/** `--watchdog` of instances, and the time in which a process with a hung thread must have ended. */
const [watchdogS, hungMsMax] = [5, 60_000];
/** The young generation of V8 has its full size from the start: it grows and shrinks with the load, in each thread. */
const heapFlags = ['--min-semi-space-size=16', '--max-semi-space-size=16'];

export class ProcessCluster implements KillableCluster {
  readonly instances: number;
  readonly #options: ProcessClusterOptions;
  readonly #processes = new Set<ChildProcess>();
  readonly #members: (ChildProcess | undefined)[] = [];
  readonly #nats: LocalNats;
  /** Undefined: none is injected inside processes. */
  readonly #inside: InjectedFaults | undefined;
  readonly #gateways: { readonly port: number; process: ChildProcess }[] = [];

  private constructor(options: ProcessClusterOptions, nats: LocalNats) {
    this.#options = options;
    this.#nats = nats;
    this.#inside = options.faults.some((fault) => fault === 'hang' || fault === 'disk')
      ? new InjectedFaults()
      : undefined;
    this.instances = options.instances;
  }

  /** Resolves when all instances serve. @throws UsageError if nats-server or a compiler for the faults is not installed */
  static async start(options: ProcessClusterOptions): Promise<ProcessCluster> {
    const nats = await LocalNats.start();
    const cluster = await createOrClose(nats, () => new ProcessCluster(options, nats));
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
        this.#members[which] = this.#join(which);
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
      case 'pause':
        member?.kill('SIGSTOP');
        await sleep(pauseMs);
        member?.kill('SIGCONT');
        break;
      case 'hang':
        if (member !== undefined) await this.#hang(member);
        this.#members[which] = this.#join(which);
        break;
      case 'disk':
        if (member?.pid !== undefined) this.#inside?.stallDisk(member.pid, diskMs);
        await sleep(diskMs);
        break;
      default:
        assertNever(fault);
    }
  }

  /** Resolves when the process has ended. @throws Error if it does not end */
  async #hang(member: ChildProcess): Promise<void> {
    if (member.pid === undefined || member.exitCode !== null || member.signalCode !== null) return;
    const ended = once(member, 'exit');
    this.#inside?.hang(member.pid);
    const isOver = await Promise.race([ended, sleep(hungMsMax, 'runs', { ref: false })]);
    if (isOver === 'runs')
      throw new Error(`Cannot continue: an instance with a hung thread has not ended after ${hungMsMax / 1000} s`);
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
    this.#inside?.remove();
  }

  async #start(): Promise<void> {
    const { instances, gateways = 1 } = this.#options;
    for (let i = 0; i < instances; i++) this.#members.push(this.#join(i));
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
    const { serveFlags = [] } = this.#options;
    return this.#run(['serve', '--drain-wait', '0', ...flags, ...serveFlags, ...this.#model()], 'pipe');
  }

  #join(instance: number): ChildProcess {
    const { threads, roles } = this.#options;
    const role = roles?.[instance] ?? 'mixed';
    const flags = ['--threads', String(threads), '--role', role, '--watchdog', String(watchdogS)];
    return this.#run(['join', ...flags, ...this.#tiers(instance), ...this.#model()], 'ignore');
  }

  /** So little memory that blocks are read from SSD. */
  #tiers(instance: number): readonly string[] {
    if (this.#inside === undefined || !this.#options.faults.includes('disk')) return [];
    const folder = this.#inside.diskFolder(String(instance));
    return ['--context', '512', '--kv-memory', '8m', '--host-memory', '1m', '--ssd', folder, '--ssd-size', '64m'];
  }

  #model(): readonly string[] {
    const { model } = this.#options;
    return [...(model === undefined ? [] : ['--model', model]), '--nats', this.#nats.url];
  }

  #run(flags: readonly string[], output: 'pipe' | 'ignore'): ChildProcess {
    const command = [...heapFlags, packageFile('bundle/cli/main.js'), ...flags];
    const env = { ...process.env, ...this.#inside?.env };
    const child = killAtExit(spawn(process.execPath, command, { stdio: ['ignore', output, 'ignore'], env }));
    this.#processes.add(child);
    child.once('exit', () => this.#processes.delete(child));
    return child;
  }
}

async function createOrClose<T>(nats: LocalNats, create: () => T): Promise<T> {
  try {
    return create();
  } catch (error) {
    await nats.close();
    throw error;
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
