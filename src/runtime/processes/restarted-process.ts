// A child process that runs a command of Kvasir: restarted when it exits, ended with this process.
import { type ChildProcess, spawn } from 'node:child_process';
import { Backoff } from './backoff.ts';

export interface RestartedProcessSpec<Ready> {
  /** Its name in log lines, for example `Instance a`. */
  readonly name: string;
  /** Module and arguments, requested at every start. */
  command(): readonly string[];
  /** Undefined: the process does not inherit the variable. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** The process has sent its only message: it serves. @returns its state, for the log */
  ready(message: Ready): string;
  /** A process that served has exited. */
  exited?(message: Ready): void;
  /** Time between SIGTERM and SIGKILL; 0: SIGKILL at once. */
  readonly killAfterMs: number;
  readonly log: (line: string) => void;
}

export class RestartedProcess<Ready> {
  /** Resolves when the process serves for the first time. Rejects if it exits before; it has printed the reason. */
  readonly ready: Promise<Ready>;
  readonly #spec: RestartedProcessSpec<Ready>;
  readonly #backoff = new Backoff();
  #process: ChildProcess | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closing = false;

  constructor(spec: RestartedProcessSpec<Ready>) {
    this.#spec = spec;
    this.ready = new Promise((resolve, reject) => this.#start(resolve, reject));
    // Without a caller that awaits it, a rejection must not end this process.
    this.ready.catch(() => {});
  }

  async close(): Promise<void> {
    this.#closing = true;
    clearTimeout(this.#timer);
    const child = this.#process;
    if (child === undefined) return;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    const { killAfterMs } = this.#spec;
    child.kill(killAfterMs === 0 ? 'SIGKILL' : 'SIGTERM');
    const killTimer = setTimeout(() => child.kill('SIGKILL'), killAfterMs);
    await ended;
    clearTimeout(killTimer);
  }

  /** @param failed called if the process exits before it serves for the first time */
  #start(serves: (message: Ready) => void, failed?: (error: Error) => void): void {
    const { name, command, env, ready, exited, log } = this.#spec;
    const startedMs = Date.now();
    const child = spawn(process.execPath, [...command()], {
      env: { ...process.env, ...env },
      // The channel closes when this process exits.
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      // A signal from the terminal to the process group must not end it while this process drains.
      detached: true,
    });
    this.#process = child;
    let served: Ready | undefined;
    child.once('message', (message: Ready & object) => {
      served = message;
      log(`${name} ${ready(message)} as process ${child.pid}`);
      serves(message);
    });
    child.once('exit', (code, signal) => {
      this.#process = undefined;
      if (served !== undefined) exited?.(served);
      if (this.#closing) return;
      const end = `${name} exited with ${signal ?? `code ${code}`}`;
      if (served === undefined && failed !== undefined)
        failed(new Error(`Cannot serve: ${end}: the line above has the reason`));
      else this.#startLater(end, Date.now() - startedMs);
    });
  }

  #startLater(end: string, livedMs: number): void {
    const delayMs = this.#backoff.next(livedMs);
    this.#spec.log(`${end}: it is restarted in ${delayMs / 1000} s`);
    this.#timer = setTimeout(() => this.#start(() => {}), delayMs);
  }
}
