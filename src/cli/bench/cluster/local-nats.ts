// A NATS server with JetStream on this host for benches, in a temporary folder.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { atExit, type TemporaryFolder, temporaryFolder } from '../../serve/exit-cleanup.ts';
import { UsageError } from '../../usage-error.ts';

export class LocalNats {
  readonly url: string;
  readonly #port: number;
  readonly #folder: TemporaryFolder;
  #process: ChildProcess;

  private constructor(port: number) {
    this.url = `nats://127.0.0.1:${port}`;
    this.#port = port;
    this.#folder = temporaryFolder('cluster');
    this.#process = this.#run();
  }

  get pid(): number | undefined {
    return this.#process.pid;
  }

  /** Kills the server, and starts it again with its stored records. Resolves when it answers. */
  async restart(): Promise<void> {
    await killChild(this.#process);
    this.#process = this.#run();
    while (!(await acceptsConnections(this.#port))) await sleep(25);
  }

  #run(): ChildProcess {
    const flags = ['-js', '-a', '127.0.0.1', '-p', String(this.#port), '-sd', this.#folder.path];
    return killAtExit(spawn('nats-server', flags, { stdio: 'ignore' }));
  }

  /** Resolves when it answers. @throws UsageError if nats-server is not installed */
  static async start(): Promise<LocalNats> {
    if (spawnSync('nats-server', ['--version']).status !== 0)
      throw new UsageError('Cannot start the cluster: nats-server is not installed');
    const port = await freePort();
    const nats = new LocalNats(port);
    for (let attempts = 0; !(await acceptsConnections(port)); attempts++) {
      if (attempts === 200) {
        await nats.close();
        throw new Error('Cannot start the cluster: the NATS server does not answer');
      }
      await sleep(25);
    }
    return nats;
  }

  async close(): Promise<void> {
    await killChild(this.#process);
    this.#folder.remove();
  }
}

/** Kills the child when this process exits. */
export function killAtExit(child: ChildProcess): ChildProcess {
  child.once(
    'exit',
    atExit(() => child.kill('SIGKILL')),
  );
  return child;
}

/** Kills the child if it still runs; resolves when it has exited. */
export async function killChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}

function acceptsConnections(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
      .once('connect', () => {
        socket.destroy();
        resolve(true);
      })
      .once('error', () => resolve(false));
  });
}
