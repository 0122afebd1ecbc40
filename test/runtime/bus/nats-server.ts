// A real NATS server for one test, which the test may kill and restart on the same port with its stored data.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, connect as dial } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { leftToUs } from '../../children.ts';

export const natsInstalled = spawnSync('nats-server', ['--version']).status === 0;

export class NatsServer {
  readonly url: string;
  readonly #port: number;
  readonly #folder = mkdtempSync(join(tmpdir(), 'kvasir-nats-'));
  readonly #flags: readonly string[];
  #process: ChildProcess | undefined;

  private constructor(port: number, flags: readonly string[]) {
    this.#port = port;
    this.#flags = flags;
    this.url = `nats://127.0.0.1:${port}`;
  }

  static async start(...flags: string[]): Promise<NatsServer> {
    const server = new NatsServer(await freePort(), flags);
    await server.start();
    return server;
  }

  async start(): Promise<void> {
    const flags = ['-a', '127.0.0.1', '-p', String(this.#port), '-sd', this.#folder, ...this.#flags];
    this.#process = leftToUs(spawn('nats-server', flags, { stdio: 'ignore' }));
    while (!(await answers(this.#port))) await new Promise((resolve) => setTimeout(resolve, 10));
  }

  /** Ends the server with SIGKILL. */
  async kill(): Promise<void> {
    const ended = new Promise((resolve) => this.#process?.once('exit', resolve));
    this.#process?.kill('SIGKILL');
    await ended;
  }

  /** Stops the process, so that the server answers nothing until it is killed. */
  hang(): void {
    this.#process?.kill('SIGSTOP');
  }

  /** Deletes all stored data; the server must not be running. */
  loseDisk(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async stop(): Promise<void> {
    if (this.#process?.exitCode === null && this.#process.signalCode === null) await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** Below the ephemeral port range: the port of a killed server stays free, and no socket can connect to itself. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 12_000 + Math.floor(Math.random() * 18_000);
    if (await isFree(port)) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer().once('error', () => resolve(false));
    probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
  });
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = dial(port, '127.0.0.1');
    socket.once('data', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
