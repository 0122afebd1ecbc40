// The probes of an instance: not ready while it loads, ready in its cluster, and its metrics.
import { afterEach, expect, test } from 'vitest';
import { ProbeServer } from '../../../src/cli/serve/host/probe-server.ts';
import { emptySnapshot } from '../../../src/runtime/snapshots/metric-snapshots.ts';

let probes: ProbeServer | undefined;
afterEach(() => probes?.close());

test('an instance shows its health, its readiness and its metrics', async () => {
  const server = await ProbeServer.open('127.0.0.1', 0, '1.2.3');
  probes = server;
  const get = async (path: string, method = 'GET'): Promise<readonly [number, string]> => {
    const response = await fetch(`http://127.0.0.1:${server.port}${path}`, { method });
    return [response.status, await response.text()];
  };
  expect(await get('/health')).toEqual([200, '{"status":"ok"}']);
  expect(await get('/ready')).toEqual([503, '{"status":"not ready","message":"the instance loads its model"}']);
  expect((await get('/metrics'))[0]).toBe(404);
  let reason: string | undefined = 'the NATS server is unreachable';
  server.show({
    name: 'a',
    notReadyReason: () => reason,
    snapshot: () => ({ ...emptySnapshot, ready: true, running: 3, generatedTokens: 7 }),
    role: () => 'decode',
  });
  expect(await get('/ready')).toEqual([503, '{"status":"not ready","message":"the NATS server is unreachable"}']);
  reason = undefined;
  expect(await get('/ready')).toEqual([200, '{"status":"ready"}']);
  const [status, text] = await get('/metrics');
  expect(status).toBe(200);
  expect(text.split('\n')).toEqual(
    expect.arrayContaining([
      'kvasir_instance_requests_running{worker="a"} 3',
      'kvasir_generated_tokens_total 7',
      'kvasir_worker_info{worker="a",role="decode"} 1',
      `kvasir_build_info{version="1.2.3",node="${process.version}"} 1`,
    ]),
  );
  expect((await get('/health', 'POST'))[0]).toBe(405);
  await expect(ProbeServer.open('127.0.0.1', server.port, '')).rejects.toThrow(
    /^Cannot listen for probes on 127.0.0.1:/,
  );
});
