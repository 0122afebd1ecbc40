// Runs the commands of a guide page as a reader would, and compares what they print with what the page shows.
import { type ChildProcess, spawn } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { root } from '../../scripts/root.mjs';

/**
 * `sh`: runs in the shell of the page, which must end with status 0. `sh server`: runs beside it until the page ends, as in
 * a terminal of its own. A `text` block that follows is the expected output: of a server, lines that it prints sooner or
 * later. `...` stands for any part of a line, and alone on a line for any number of lines.
 */
export interface Block {
  readonly kind: 'sh' | 'server';
  readonly code: string;
  readonly expected: string | undefined;
}

export function blocksOf(markdown: string): readonly Block[] {
  const fences = [...markdown.matchAll(/^```(sh server|sh|text)\n([\s\S]*?)^```$/gm)];
  return fences.flatMap(([, info, code], index) => {
    if (info === 'text') return [];
    const next = fences[index + 1];
    return [{ kind: info === 'sh' ? 'sh' : 'server', code, expected: next?.[1] === 'text' ? next[2] : undefined }];
  });
}

/** Undefined when `actual` is as expected, otherwise both. */
export function difference(expected: string, actual: string, isWhole: boolean): string | undefined {
  const lines = expected.trimEnd().split('\n');
  const pattern = lines.map((line) => (line === '...' ? '(?:[^\\n]*\\n)*?' : `${lineOf(line)} *\\n`)).join('');
  const matches = new RegExp(isWhole ? `^\\n*${pattern}\\n*$` : `(?:^|\\n)${pattern}`).test(`${actual.trimEnd()}\n`);
  return matches ? undefined : `expected:\n${expected}\nprinted:\n${actual}`;
}

function lineOf(line: string): string {
  return line
    .trimEnd()
    .split('...')
    .map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/ +/g, ' +'))
    .join('[^\\n]*');
}

/** Ports that the pages name, each replaced by a free one. */
const ports = ['8000', '8001', '4222'];

/** Returns what differs, block by block. */
export async function runGuide(path: string): Promise<readonly string[]> {
  let markdown = readFileSync(join(root, path), 'utf8');
  const free = new Map<string, number>();
  for (const port of ports) free.set(port, await freePort());
  for (const [port, number] of free) markdown = markdown.replaceAll(new RegExp(`\\b${port}\\b`, 'g'), `${number}`);
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-guide-'));
  for (const name of ['node_modules', 'experiments', 'models']) symlinkSync(join(root, name), join(folder, name));
  const session = new Session(folder, shim(folder, free.get('8000')));
  try {
    return await session.run(blocksOf(markdown));
  } finally {
    await session.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

/** A folder with an `npx` that runs the built command, and lets `serve` listen on the port of this run. */
function shim(folder: string, port: number | undefined): string {
  const bin = join(folder, '.bin');
  mkdirSync(bin);
  const main = join(root, 'bundle/cli/main.js');
  const lines = ['#!/bin/sh', 'shift', 'if [ "$1" = serve ]; then', '  case "$*" in *--port*) ;; *)'];
  lines.push(`    shift; exec "${process.execPath}" "${main}" serve --port ${port} "$@";;`, '  esac', 'fi');
  lines.push(
    'if [ "$1" = top ]; then',
    `  shift; exec "${process.execPath}" "${main}" top --url http://127.0.0.1:${port} "$@"`,
    'fi',
  );
  writeFileSync(join(bin, 'npx'), [...lines, `exec "${process.execPath}" "${main}" "$@"`, ''].join('\n'));
  chmodSync(join(bin, 'npx'), 0o755);
  return bin;
}

class Session {
  readonly #folder: string;
  readonly #env: NodeJS.ProcessEnv;
  readonly #shell: ChildProcess;
  readonly #servers: ChildProcess[] = [];
  #printed = '';
  #errors = '';

  constructor(folder: string, bin: string) {
    this.#folder = folder;
    this.#env = { ...process.env, PATH: `${bin}:${process.env.PATH}`, KVASIR_NATS: undefined, TERM: 'dumb' };
    this.#shell = this.#spawn(['bash', '--norc', '-s']);
    this.#shell.stdout?.on('data', (data) => {
      this.#printed += data;
    });
    this.#shell.stderr?.on('data', (data) => {
      this.#errors += data;
    });
  }

  async run(blocks: readonly Block[]): Promise<readonly string[]> {
    for (const block of blocks) {
      const problem = block.kind === 'sh' ? await this.#command(block) : await this.#server(block);
      // What follows depends on it.
      if (problem !== undefined) return [`${block.code}${problem}\n${this.#errors}`];
    }
    return [];
  }

  async #command({ code, expected }: Block): Promise<string | undefined> {
    this.#printed = '';
    this.#errors = '';
    this.#shell.stdin?.write(`${code}\nprintf '\\n:done %s\\n' $?\n`);
    const done = /\n:done (\d+)\n$/;
    if (!(await until(() => done.test(this.#printed)))) return `still runs, printed:\n${this.#printed}`;
    const [tail, status] = done.exec(this.#printed) ?? ['', ''];
    const printed = this.#printed.slice(0, this.#printed.length - tail.length);
    if (status !== '0') return `ended with ${status}, printed:\n${printed}`;
    return expected === undefined ? undefined : difference(expected, printed, true);
  }

  async #server({ code, expected = '' }: Block): Promise<string | undefined> {
    const server = this.#spawn(['bash', '-c', code]);
    this.#servers.push(server);
    let printed = '';
    const read = (data: unknown) => {
      printed += data;
    };
    server.stdout?.on('data', read);
    server.stderr?.on('data', read);
    await until(() => difference(expected, printed, false) === undefined || server.exitCode !== null);
    return difference(expected, printed, false);
  }

  /** In a process group of its own, so that whatever it starts ends with it. */
  #spawn([file, ...args]: readonly string[]): ChildProcess {
    return spawn(file, args, { cwd: this.#folder, env: this.#env, detached: true, stdio: 'pipe' });
  }

  async close(): Promise<void> {
    const all = [...this.#servers.toReversed(), this.#shell];
    for (const child of all) signal(child, 'SIGTERM');
    await until(() => all.every(({ exitCode, signalCode }) => exitCode !== null || signalCode !== null), 5_000);
    for (const child of all) signal(child, 'SIGKILL');
  }
}

function signal({ pid }: ChildProcess, name: NodeJS.Signals): void {
  try {
    if (pid !== undefined) process.kill(-pid, name);
  } catch {
    // It has ended.
  }
}

async function until(isMet: () => boolean, ms = 60_000): Promise<boolean> {
  const endMs = performance.now() + ms;
  while (!isMet()) {
    if (performance.now() > endMs) return false;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return true;
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer().on('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}
