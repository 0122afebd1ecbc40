// Starts the real command as a child process and waits until it serves.
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const command = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

export interface RunningServer {
  readonly url: string;
  readonly output: () => string;
  readonly process: ChildProcess;
  /** Sends SIGTERM and resolves with the exit code. */
  stop(): Promise<number | null>;
}

/** @throws Error with the server's output when it ends before it serves */
export async function startServer(flags: readonly string[], env: Record<string, string> = {}): Promise<RunningServer> {
  const child = spawn(process.execPath, [command, 'serve', '--port', '0', '--log-level', 'warn', ...flags], {
    env: { ...process.env, ...env },
  });
  let output = '';
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const url = await new Promise<string>((resolve, reject) => {
    const listen = (chunk: Buffer): void => {
      output += chunk.toString();
      const found = /Serving on (\S+)/.exec(output)?.[1];
      if (found !== undefined) resolve(found);
    };
    child.stdout.on('data', listen);
    child.stderr.on('data', listen);
    void exited.then((code) => reject(new Error(`the server ended with ${code}: ${output}`)));
  });
  const stop = (): Promise<number | null> => {
    child.kill('SIGTERM');
    return exited;
  };
  return { url, output: () => output, process: child, stop };
}

/** Value of an unlabelled metric. */
export async function metric(server: RunningServer, name: string): Promise<number> {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const line = text.split('\n').find((candidate) => candidate.startsWith(`${name} `));
  if (line === undefined) throw new Error(`no metric ${name}`);
  return Number(line.slice(name.length + 1));
}

/** Asks again until the condition holds; the test's own time-out bounds it. */
export async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
}
