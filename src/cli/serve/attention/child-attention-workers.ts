// Attention workers as child processes that run `kvasir join --role attention`, restarted at their ports when they exit.
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { Backoff } from '../../../runtime/processes/backoff.ts';
import type { AttentionWorkersSettings } from '../../options/attention-worker-options.ts';
import { type ServeOptions, toFlag } from '../../options/options.ts';
import type { AttentionWorkerMessage } from './attention-workers.ts';

const command = fileURLToPath(new URL('../../main.js', import.meta.url));

export class ChildAttentionWorkers {
  /** The addresses, in the order of the shards, and the secret of the processes. */
  readonly settings: Extract<AttentionWorkersSettings, { readonly token: string }>;
  readonly #children: readonly Child[];

  private constructor(children: readonly Child[], addresses: readonly string[], token: string) {
    this.#children = children;
    this.settings = { addresses, token };
  }

  /** @throws Error if a process exits at its start; it has printed the reason */
  static async start(options: ServeOptions, workers: number, log: (line: string) => void) {
    const token = randomBytes(16).toString('hex');
    const flags = flagsOf(options, workers);
    const children = Array.from({ length: workers }, (_, i) => new Child(`${i + 1}/${workers}`, flags, token, log));
    try {
      const addresses = await Promise.all(children.map((child) => child.address));
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

/** The workers compute at the same time, and share the memory. */
function flagsOf(options: ServeOptions, workers: number): readonly string[] {
  const { model, weights, inputs, context, kvMemory } = options;
  const threads = Math.max(1, Math.floor(options.threads / workers));
  const given = { model, weights, inputs, context, threads, kvMemory: kvMemory && Math.floor(kvMemory / workers) };
  return Object.entries(given).flatMap(([name, value]) =>
    value === undefined ? [] : [`--${toFlag(name)}`, String(value)],
  );
}

class Child {
  /** Host and port, the same after a restart. */
  readonly address: Promise<string>;
  readonly #shard: string;
  readonly #flags: readonly string[];
  readonly #token: string;
  readonly #log: (line: string) => void;
  readonly #backoff = new Backoff();
  #process: ChildProcess | undefined;
  #port = 0;
  #timer: NodeJS.Timeout | undefined;
  #closing = false;

  constructor(shard: string, flags: readonly string[], token: string, log: (line: string) => void) {
    this.#shard = shard;
    this.#flags = flags;
    this.#token = token;
    this.#log = log;
    this.address = new Promise((resolve, reject) => this.#start(resolve, reject));
    // Without a caller that awaits it, a rejection must not end the process.
    this.address.catch(() => {});
  }

  async close(): Promise<void> {
    this.#closing = true;
    clearTimeout(this.#timer);
    const child = this.#process;
    if (child === undefined) return;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await ended;
  }

  /** @param failed called if the process exits before it listens for the first time */
  #start(listens: (address: string) => void, failed?: (error: Error) => void): void {
    const startedMs = Date.now();
    const role = ['join', '--role', 'attention', '--shard', this.#shard, '--pages-port', String(this.#port)];
    const child = spawn(process.execPath, [command, ...role, ...this.#flags], {
      env: { ...process.env, KVASIR_TOKEN: this.#token },
      // The channel closes when this process exits.
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      // A signal from the terminal to the process group must not end it while this process drains.
      detached: true,
    });
    this.#process = child;
    let hasListened = false;
    child.once('message', ({ address }: AttentionWorkerMessage) => {
      hasListened = true;
      this.#port = Number(address.slice(address.lastIndexOf(':') + 1));
      this.#log(`Attention worker ${this.#shard} listens at ${address} as process ${child.pid}`);
      listens(address);
    });
    child.once('exit', (code, signal) => {
      this.#process = undefined;
      if (this.#closing) return;
      const end = `Attention worker ${this.#shard} exited with ${signal ?? `code ${code}`}`;
      if (!hasListened && failed !== undefined)
        failed(new Error(`Cannot serve: ${end}: the line above has the reason`));
      else this.#startLater(end, Date.now() - startedMs);
    });
  }

  #startLater(end: string, livedMs: number): void {
    const delayMs = this.#backoff.next(livedMs);
    this.#log(`${end}: it is restarted in ${delayMs / 1000} s`);
    this.#timer = setTimeout(() => this.#start(() => {}), delayMs);
  }
}
