// The operator's view of instances: /api/cluster, metrics of links and predictions, and `kvasir top`.
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RunningServer, startServer, until } from './server.ts';

const command = fileURLToPath(new URL('../../bundle/cli/main.js', import.meta.url));
const run = promisify(execFile);
const authorization = 'Bearer secret';

let server: RunningServer;
beforeAll(async () => {
  const apart = ['--config', 'test/e2e/apart.yaml', '--threads', '3', '--context', '512', '--kv-memory', '32m'];
  server = await startServer([...apart, '--api-key', 'secret']);
  const prompt = Array.from({ length: 200 }, (_, i) => 5 + ((i * 11) % 400));
  const body = JSON.stringify({ model: 'kvasir-tiny-q8_0', prompt, max_tokens: 8, temperature: 0, ignore_eos: true });
  const answer = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { authorization, 'content-type': 'application/json' },
    body,
  });
  expect(answer.status).toBe(200);
});
afterAll(() => server.stop());

const top = (...flags: readonly string[]) =>
  run(process.execPath, [command, 'top', '--url', server.url, '--api-key', 'secret', ...flags]);

interface View {
  readonly instances: readonly {
    readonly role: string;
    readonly sent_bytes: number;
    readonly links: readonly { readonly to: number; readonly bytes: number; readonly backlog_bytes: number }[];
    readonly generated_tokens: number;
  }[];
}

async function metrics(): Promise<string> {
  return (await fetch(`${server.url}/metrics`, { headers: { authorization } })).text();
}

describe('a running cluster', () => {
  it('is reported by instance and by link', async () => {
    const view = async () =>
      (await (await fetch(`${server.url}/api/cluster`, { headers: { authorization } })).json()) as View;
    // Counters are updated with the next step of an instance.
    await until(async () => (await view()).instances[0]?.links[0]?.backlog_bytes === 0);
    const { instances } = await view();
    expect(instances.map(({ role }) => role)).toEqual(['prefill', 'decode', 'mixed']);
    const [from, to] = instances;
    expect(from?.links).toEqual([{ to: 1, transport: 'thread', bytes: from?.sent_bytes, backlog_bytes: 0 }]);
    expect(from?.sent_bytes).toBeGreaterThan(0);
    expect(to?.generated_tokens).toBe(7);
    const text = await metrics();
    const labels = '{from="0",to="1",transport="thread"}';
    expect(text).toContain(`kvasir_link_sent_bytes_total${labels} ${from?.sent_bytes}\n`);
    expect(text).toContain(`kvasir_link_backlog_bytes${labels} 0\n`);
    expect((await fetch(`${server.url}/api/cluster`)).status).toBe(401);
  });

  it('exports the accuracy of its predictions', async () => {
    const text = await metrics();
    for (const name of ['ttft', 'tbt']) {
      expect(text).toContain(`kvasir_${name}_actual_to_predicted_count 1\n`);
      expect(text).toContain(`kvasir_predicted_${name}_seconds_count 1\n`);
    }
  });

  it('is shown by kvasir top, for people and for programs', async () => {
    const { stdout } = await top('--once');
    const [title, names, ...rows] = stdout.trimEnd().split('\n');
    expect(title).toBe('kvasir-tiny-q8_0: ready, 3 of 3 instances serve');
    expect(names?.split(/\s+/).slice(0, 6)).toEqual(['instance', 'role', 'up', 'waiting', 'running', 'pages']);
    expect(rows.map((row) => row.trim().split(/\s+/).slice(0, 5))).toEqual([
      ['0', 'prefill', 'yes', '0', '0'],
      ['1', 'decode', 'yes', '0', '0'],
      ['2', 'mixed', 'yes', '0', '0'],
    ]);
    const json = await top('--once', '--json');
    expect(JSON.parse(json.stdout)).toMatchObject({ object: 'kvasir.cluster', ready: true });
  });

  it('reports in one line why it cannot query the server', async () => {
    const unreachable = run(process.execPath, [command, 'top', '--once', '--url', 'http://127.0.0.1:1']);
    await expect(unreachable).rejects.toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^Cannot query http:\/\/127.0.0.1:1: .*\n$/),
    });
    await expect(run(process.execPath, [command, 'top', '--once', '--url', server.url])).rejects.toMatchObject({
      stderr: `Cannot query ${server.url}: the server answered 401 to GET /api/cluster\n`,
    });
  });
});
