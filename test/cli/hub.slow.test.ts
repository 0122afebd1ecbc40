// Models of the hub from the command line, against a local hub: pull, list, inspect, generate, remove, and two pulls at once.
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startServer } from '../e2e/server.ts';
import { commitA, type HubServer, sha256, startHubServer } from '../weights/hub/hub-server.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const tiny = readFileSync(join(root, 'models/kvasir-tiny/kvasir-tiny-q8_0.gguf'));
const home = mkdtempSync(join(tmpdir(), 'kvasir-hub-cli-'));
let hub: HubServer;

beforeAll(async () => {
  const files = { 'tiny-Q8_0.gguf': tiny, 'README.md': 'words' };
  hub = await startHubServer({ 'org/tiny': { commit: commitA, files }, 'org/two': { commit: commitA, files } });
});
afterAll(async () => {
  await hub.close();
  rmSync(home, { recursive: true, force: true });
});

interface Ended {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function start(
  args: readonly string[],
  env: Record<string, string> = {},
): { child: ChildProcess; ended: Promise<Ended> } {
  const child = spawn(process.execPath, [join(root, 'bundle/cli/main.js'), ...args], {
    env: { ...process.env, HF_HOME: home, HF_ENDPOINT: hub.url, HF_HUB_OFFLINE: '0', HF_TOKEN: '', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => {
    stdout += chunk.toString();
  });
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk.toString();
  });
  const ended = new Promise<Ended>((resolve) => child.once('close', (status) => resolve({ status, stdout, stderr })));
  return { child, ended };
}

const kvasir = (args: readonly string[], env?: Record<string, string>): Promise<Ended> => start(args, env).ended;

const contentsOf = (id: string): number => hub.fetched().filter((path) => path.includes(id)).length;

describe('models of the hub', () => {
  it('are pulled by reference, generate, and are served from the cache without the hub', async () => {
    const args = ['generate', 'Once upon a time', '--raw', '--temperature', '0', '--max-tokens', '8', '--json'];
    const here = await kvasir([...args, '--model', 'models/kvasir-tiny/kvasir-tiny-q8_0.gguf'.replace(/^/, root)]);
    const pulled = await kvasir([...args, '--model', 'org/tiny:Q8_0']);
    expect(pulled).toMatchObject({ status: 0, stdout: here.stdout });
    expect(pulled.stderr).toMatch(
      /Downloading org\/tiny:Q8_0: 1 file, 6.0 MB\nDownloaded org\/tiny:Q8_0 in [\d.]+ s\n/,
    );
    const offline = await kvasir([...args, '--model', 'org/tiny'], { HF_HUB_OFFLINE: '1' });
    expect(offline).toEqual(here);
    expect(contentsOf('org/tiny')).toBe(1);
  });

  it('are served under the given reference', async () => {
    const env = { HF_HOME: home, HF_ENDPOINT: hub.url, HF_HUB_OFFLINE: '1' };
    const server = await startServer(['--model', 'org/tiny'], env);
    const { id } = (await (await fetch(`${server.url}/v1/models/org/tiny`)).json()) as { id: string };
    expect([id, await server.stop()]).toEqual(['org/tiny', 0]);
  });

  it('are listed, inspected and removed', async () => {
    const pulled = JSON.parse((await kvasir(['models', 'pull', 'org/tiny', '--json'])).stdout);
    expect(pulled).toMatchObject({ model: 'org/tiny', revision: 'main', commit: commitA, bytes: tiny.byteLength });
    const { cache } = JSON.parse((await kvasir(['models', 'list', '--json'])).stdout);
    expect(cache.repositories).toContainEqual(
      expect.objectContaining({
        id: 'org/tiny',
        bytes: tiny.byteLength,
        incompleteBytes: 0,
        snapshots: [
          expect.objectContaining({
            commit: commitA,
            revisions: ['main'],
            files: ['tiny-Q8_0.gguf'],
            models: [expect.objectContaining({ path: pulled.path, architecture: 'llama', context: 8192 })],
          }),
        ],
      }),
    );
    expect((await kvasir(['models', 'list'])).stdout).toMatch(/org\/tiny: 6.0 MB, last used \d{4}-/);
    const report = JSON.parse((await kvasir(['models', 'inspect', 'org/tiny', '--json'])).stdout);
    expect(report).toMatchObject({ architecture: 'llama', context: 8192, kvBytesPerToken: 3072, chatTemplate: true });
    expect(report.files).toEqual([{ name: 'tiny-Q8_0.gguf', bytes: tiny.byteLength }]);
    const removed = await kvasir(['models', 'remove', 'org/tiny', '--json']);
    expect(removed).toMatchObject({
      status: 0,
      stdout: `${JSON.stringify({ model: 'org/tiny', bytes: tiny.byteLength + 40 })}\n`,
    });
    expect(readdirSync(join(home, 'hub'))).not.toContain('models--org--tiny');
    for (const command of ['inspect', 'remove']) {
      const gone = await kvasir(['models', command, 'org/tiny']);
      expect(gone).toMatchObject({
        status: 1,
        stderr: expect.stringMatching(/^Cannot \w+ org\/tiny: it is not in .*\n$/),
      });
    }
  });

  it('pulled by two processes at once are fetched once, and cannot be removed meanwhile', async () => {
    let respond = (): void => {};
    const requested = new Promise<void>((resolve) => {
      hub.misbehave = (request, response, _sent, content) => {
        if (!request.path.startsWith('/cdn/org/two') || content === undefined) return false;
        respond = () => response.writeHead(200, { 'content-length': content.byteLength }).end(content);
        resolve();
        return true;
      };
    });
    const first = start(['models', 'pull', 'org/two']);
    await requested;
    const second = start(['models', 'pull', 'org/two']);
    const waiting = await new Promise<string>((resolve) =>
      second.child.stderr?.once('data', (chunk: Buffer) => resolve(chunk.toString())),
    );
    expect(waiting).toBe(`Waiting for process ${first.child.pid}, which is downloading org/two\n`);
    const removal = await kvasir(['models', 'remove', 'org/two']);
    expect(removal).toMatchObject({
      status: 1,
      stderr: `Cannot remove org/two: process ${first.child.pid} is downloading into it\n`,
    });
    respond();
    const ends = await Promise.all([first.ended, second.ended]);
    expect(ends.map(({ status }) => status)).toEqual([0, 0]);
    expect(ends[0].stdout).toBe(ends[1].stdout);
    expect(contentsOf('org/two')).toBe(1);
    hub.misbehave = () => false;
  });

  it('killed in the middle are resumed by the next process without a wait', async () => {
    await kvasir(['models', 'remove', 'org/two']);
    const half = Math.floor(tiny.byteLength / 2);
    hub.misbehave = (request, response, _sent, content) => {
      if (!request.path.startsWith('/cdn/org/two') || content === undefined || request.range !== undefined)
        return false;
      response.writeHead(200, { 'content-length': content.byteLength });
      response.write(content.subarray(0, half));
      return true;
    };
    const blobs = join(home, 'hub/models--org--two/blobs');
    const partial = join(blobs, `${sha256(tiny)}.kvasir.incomplete`);
    for (const signal of ['SIGKILL', 'SIGINT'] as const) {
      const { child, ended } = start(['models', 'pull', 'org/two']);
      await until(() => sizeOf(partial) === half);
      child.kill(signal);
      const { status, stderr } = await ended;
      if (signal === 'SIGINT')
        expect([status, stderr.split('\n').at(-2)]).toEqual([130, 'Interrupted: the next pull resumes org/two']);
      if (signal === 'SIGKILL') rmSync(partial);
    }
    const { status, stderr } = await kvasir(['models', 'pull', 'org/two']);
    expect([status, stderr]).toEqual([0, expect.not.stringContaining('Waiting')]);
    expect(hub.seen.at(-1)?.range).toBe(`bytes=${half}-`);
    expect(readdirSync(blobs)).toEqual([sha256(tiny)]);
    hub.misbehave = () => false;
  });

  it.each([
    ['org/none', 1, /^Cannot download org\/none: there is no repository org\/none \(404\)\n$/],
    ['org/tiny@nope', 1, /^Cannot download org\/tiny@nope: org\/tiny has no revision 'nope' \(404\)\n$/],
    [
      'org/tiny:no.gguf',
      1,
      /^Cannot use org\/tiny:no.gguf: the repository has no 'no.gguf'; its GGUF models: tiny-Q8_0.gguf\n$/,
    ],
    ['nothing', 2, /^Cannot use 'nothing': write org\/name, /],
  ])('%s: one line and its exit code', async (model, status, message) => {
    const ended = await kvasir(['models', 'pull', model]);
    expect(ended).toMatchObject({ status, stderr: expect.stringMatching(message) });
  });
});

function sizeOf(path: string): number {
  try {
    return readFileSync(path).byteLength;
  } catch {
    return 0;
  }
}

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
}
