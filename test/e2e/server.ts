// Starts the real command as a child process and waits until it serves.
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { leftToUs } from '../children.ts';

const command = fileURLToPath(new URL('../../bundle/cli/main.js', import.meta.url));

export interface RunningProcess {
  readonly output: () => string;
  readonly process: ChildProcess;
  /** Sends SIGTERM and resolves with the exit code. */
  stop(): Promise<number | null>;
}

export interface RunningServer extends RunningProcess {
  readonly url: string;
}

/** @throws Error with the output of the server if it exits before it serves */
export async function startServer(flags: readonly string[], env: Record<string, string> = {}): Promise<RunningServer> {
  // No load balancer needs time to leave.
  const args = ['serve', '--port', '0', '--drain-wait', '0', '--no-warm-up', ...flags];
  const { match: url, ...running } = await startCommand(args, /Serving on (\S+)/, env);
  return { url, ...running };
}

/** An instance that has joined a cluster. @param within prefix of the command @throws Error with its output if it exits before */
export function startInstance(
  flags: readonly string[],
  within: readonly string[] = [],
  env: Record<string, string> = {},
): Promise<RunningProcess> {
  return startCommand(['join', '--threads', '1', '--no-warm-up', ...flags], /Joined as (\S+)/, env, within);
}

/** A store for the blocks of other instances. */
export function startStore(flags: readonly string[]): Promise<RunningProcess> {
  return startCommand(['join', '--role', 'store', ...flags], /Joined as (\S+)/, {});
}

/** A process with one shard of the KV heads, and its address. */
export async function startAttentionWorker(
  flags: readonly string[],
  env: Record<string, string>,
): Promise<RunningProcess & { readonly address: string }> {
  const args = ['join', '--role', 'attention', '--threads', '1', ...flags];
  const { match: address, ...running } = await startCommand(args, /Attention worker .* at (\S+): /, env);
  return { address, ...running };
}

async function startCommand(
  args: readonly string[],
  ready: RegExp,
  env: Record<string, string>,
  within: readonly string[] = [],
): Promise<RunningProcess & { readonly match: string }> {
  const [program = process.execPath, ...before] = [...within, process.execPath];
  const child = leftToUs(spawn(program, [...before, command, ...args], { env: { ...process.env, ...env } }));
  let output = '';
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const match = await new Promise<string>((resolve, reject) => {
    const onOutput = (chunk: Buffer): void => {
      output += chunk.toString();
      const found = ready.exec(output)?.[1];
      if (found !== undefined) resolve(found);
    };
    child.stdout.on('data', onOutput);
    child.stderr.on('data', onOutput);
    void exited.then((code) => reject(new Error(`it exited with ${code}: ${output}`)));
  });
  const stop = (): Promise<number | null> => {
    child.kill('SIGTERM');
    return exited;
  };
  return { match, output: () => output, process: child, stop };
}

/** Value of an unlabelled metric. */
export async function metric(server: RunningServer, name: string): Promise<number> {
  const response = await fetch(`${server.url}/metrics`);
  const text = await response.text();
  const line = text.split('\n').find((candidate) => candidate.startsWith(`${name} `));
  if (line === undefined) throw new Error(`no metric ${name} in answer ${response.status}`);
  return Number(line.slice(name.length + 1));
}

/** Sum of a metric over its labels. */
export async function metricSum(server: RunningServer, name: string): Promise<number> {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`));
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}

/** Pauses between polls, so that polling does not use the core of the awaited work. */
const [firstPauseMs, lastPauseMs] = [25, 100];

/** Polls until the condition holds, bounded by the timeout of the test. The pauses grow with the time waited, by an eighth of it. */
export async function until(holds: () => Promise<boolean>): Promise<void> {
  const started = performance.now();
  while (!(await holds())) {
    const pauseMs = Math.min(Math.max((performance.now() - started) / 8, firstPauseMs), lastPauseMs);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}
