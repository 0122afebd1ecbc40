// Keys with names, roles, cache groups and limits: what the gateway refuses, and what it isolates.
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { describe, expect, it, vi } from 'vitest';
import type { RequestTrace } from '../../../src/core/protocol/request-trace.ts';
import { FileStore } from '../../../src/gateway/batches/file-store.ts';
import { GatewayIds } from '../../../src/gateway/forwarding/gateway-ids.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import type { Caller } from '../../../src/gateway/keys/caller.ts';
import { CallerUsage } from '../../../src/gateway/keys/caller-usage.ts';
import { parseKeys, readKeysFile, watchKeysFile } from '../../../src/gateway/keys/keys-file.ts';
import { accepted, type Script, started, tokens } from '../scripted-port.ts';
import { answering, chat, events, gateway, noCluster } from '../world.ts';

const hash = (key: string) => createHash('sha256').update(key).digest('hex');

const file = `
keys:
  - { name: team, sha256: ${hash('secret-team')}, limits: { priority: 3, concurrent_requests: 1, file_bytes: 1k } }
  - { name: ops, sha256: ${hash('secret-ops')}, role: admin }
  - { name: lab-a, sha256: ${hash('secret-a')}, cache_group: lab }
  - { name: lab-b, sha256: ${hash('secret-b')}, cache_group: lab }
`;
const keysOf = (text: string) => new ApiKeys({ users: [], admins: [] }, parseKeys(text));
const bearer = (key: string) => ({ authorization: `Bearer ${key}` });
const neverEnds: Script = () => [accepted, started(0), tokens([104])];

describe('the keys file', () => {
  it('gives names, roles, groups and limits', () => {
    const keys = keysOf(file);
    expect(keys.callerOf('Bearer secret-team')).toMatchObject({
      ...{ name: 'team', role: 'user' },
      limits: { priority: 3, concurrentRequests: 1, fileBytes: 1024 },
    });
    expect(keys.callerOf('Bearer secret-ops').role).toBe('admin');
    expect(() => keys.callerOf('Bearer secret')).toThrow('unknown');
  });

  it('is refused with the field that is wrong', () => {
    const entry = (rest: string) => `keys: [{ name: a, sha256: ${hash('a')}, ${rest} }]`;
    expect(() => parseKeys(entry('limits: { request_per_minute: 5 }'))).toThrow('request_per_minute');
    expect(() => parseKeys(entry('limits: { files: -1 }'))).toThrow('expected number to be >=0');
    expect(() => parseKeys(entry('role: root'))).toThrow();
    expect(() => parseKeys('keys: [{ name: a, sha256: abc }]')).toThrow('sha256sum');
    expect(() => parseKeys(`keys: [{ name: a, sha256: ${hash('a')} }, { name: a, sha256: ${hash('b')} }]`)).toThrow(
      'earlier key',
    );
    expect(() => readKeysFile('/nowhere/keys.yaml')).toThrow('/nowhere/keys.yaml: ENOENT');
  });

  it('is read again when it changes; an invalid one changes nothing', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-keys-'));
    const path = join(folder, 'keys.yaml');
    let seconds = 1;
    vi.useFakeTimers();
    const write = (text: string): void => {
      writeFileSync(path, text);
      utimesSync(path, seconds, seconds++);
      vi.advanceTimersByTime(1000);
    };
    write(file);
    const keys = keysOf(file);
    const errors: string[] = [];
    const close = watchKeysFile(
      path,
      (entries) => keys.replaceFile(entries),
      (message) => errors.push(message),
    );
    try {
      write('keys: 5');
      expect(errors).toHaveLength(1);
      expect(keys.accepts('Bearer secret-team')).toBe(true);
      write(file.replace(hash('secret-team'), hash('rotated')));
      expect([keys.accepts('Bearer secret-team'), keys.accepts('Bearer rotated')]).toEqual([false, true]);
      rmSync(path);
      vi.advanceTimersByTime(1000);
      expect([errors.length, keys.accepts('Bearer rotated')]).toEqual([2, true]);
    } finally {
      close();
      vi.useRealTimers();
      rmSync(folder, { recursive: true });
    }
  });
});

describe('roles', () => {
  it('metrics, the cluster, role changes and requests of others need an admin key', async () => {
    const trace = {
      ...{ id: 'r-0', tenant: 'lab-a', state: 'running', promptTokens: 1, maxTokens: 2, outputTokens: 0 },
      ...{ batch: false, priority: 0, steps: [], stepsOmitted: 0, placements: [], submittedUs: 0 },
    } as unknown as RequestTrace;
    const cluster = { ...noCluster, requestTrace: (id: string) => (id === 'r-0' ? trace : undefined) };
    const { app } = gateway(answering('x'), { keys: keysOf(file), cluster });
    const get = async (path: string, key: string) => (await app.request(path, { headers: bearer(key) })).status;
    for (const path of ['/metrics', '/api/cluster']) {
      expect(await get(path, 'secret-team')).toBe(403);
      expect(await get(path, 'secret-ops')).toBe(200);
    }
    const role = { method: 'POST', body: JSON.stringify({ role: 'mixed' }), headers: bearer('secret-team') };
    expect((await app.request('/api/instances/0/role', role)).status).toBe(403);
    const keys = ['secret-a', 'secret-ops', 'secret-team', 'secret-b'];
    expect(await Promise.all(keys.map((key) => get('/api/requests/r', key)))).toEqual([200, 200, 404, 404]);
    expect(await get('/v1/models', 'secret-team')).toBe(200);
  });

  it('the only key of a server is an admin key; of several, none is unless it is an --admin-key', () => {
    const roles = (users: string[], admins: string[] = []) => {
      const keys = new ApiKeys({ users, admins });
      return [...users, ...admins].map((key) => keys.callerOf(`Bearer ${key}`).role);
    };
    expect(roles(['a'])).toEqual(['admin']);
    expect(roles(['a', 'b'])).toEqual(['user', 'user']);
    expect(roles(['a'], ['b'])).toEqual(['user', 'admin']);
  });

  it('are owners by their digest, which another gateway states, never by their name', () => {
    const keys = new ApiKeys({ users: ['a'], admins: [] });
    const { name } = keys.callerOf('Bearer a');
    expect(keys.callerOfOwner(keys.ownerOf(name)).name).toBe(name);
    expect(keys.callerOfOwner(name).name).toBe(`unknown ${name}`);
  });

  it('the name of a plain key does not depend on the other keys', () => {
    const name = (users: string[]) => new ApiKeys({ users, admins: [] }).callerOf('Bearer a').name;
    expect(name(['a'])).toBe(name(['b', 'a']));
    expect(name(['a'])).not.toContain('a,');
  });
});

describe('isolation', () => {
  it('keys share no cached prefix unless the file declares a group', async () => {
    const { post, port } = gateway(answering('x'), { keys: keysOf(file) });
    for (const key of ['secret-team', 'secret-ops', 'secret-a', 'secret-b'])
      await post('/v1/chat/completions', { ...chat, cache_salt: 's' }, bearer(key));
    const [team, ops, a, b] = port.requests.map(({ salt }) => salt);
    expect(new Set([team, ops, a, b]).size).toBe(3);
    expect(a).toBe(b);
    const open = gateway(answering('x'));
    await open.post('/v1/chat/completions', { ...chat, cache_salt: 's' });
    expect(open.port.requests[0]?.salt).toBe('s');
  });

  it("the client's x-request-id is returned, and the log line is written at the end with what was used", async () => {
    const lines: Record<string, unknown>[] = [];
    const logger = pino({ level: 'info' }, { write: (line: string) => lines.push(JSON.parse(line)) });
    const { post } = gateway(answering('hey'), { keys: keysOf(file), logger });
    const headers = { ...bearer('secret-team'), 'x-request-id': 'mine-1' };
    const response = await post('/v1/chat/completions', { ...chat, stream: true }, headers);
    expect(response.headers.get('x-request-id')).toBe('mine-1');
    expect(lines).toHaveLength(0);
    await events(response);
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatchObject({
      ...{ clientRequestId: 'mine-1', tenant: 'team', path: '/v1/chat/completions', status: 200 },
      ...{ outcome: 'finished', cachedTokens: 2, outputTokens: 3 },
    });
    expect(lines[0]).toHaveProperty('ttftMs');
    const forged = await post('/v1/chat/completions', chat, { ...bearer('secret-ops'), 'x-request-id': 'a b' });
    expect(forged.headers.get('x-request-id')).toMatch(/^req-/);
  });
});

describe('limits', () => {
  it('a priority above the highest of the key is refused', async () => {
    const { post } = gateway(answering('x'), { keys: keysOf(file) });
    const send = (priority: number) => post('/v1/chat/completions', { ...chat, priority }, bearer('secret-team'));
    expect((await send(3)).status).toBe(200);
    const refused = await send(4);
    expect(refused.status).toBe(403);
    expect(await refused.json()).toMatchObject({ error: { param: 'priority' } });
  });

  it('a 429 names the limit, and a request that ended frees its place', async () => {
    const { post, app } = gateway(neverEnds, { keys: keysOf(file) });
    const abort = new AbortController();
    const init = { method: 'POST', headers: bearer('secret-team'), signal: abort.signal };
    const body = JSON.stringify({ ...chat, stream: true });
    const running = await app.request('/v1/chat/completions', { ...init, body });
    expect(running.status).toBe(200);
    const refused = await post('/v1/chat/completions', chat, bearer('secret-team'));
    expect(refused.status).toBe(429);
    expect(await refused.json()).toMatchObject({ error: { param: 'concurrent_requests', code: 'key_limit' } });
    await running.body?.cancel();
    const again = await app.request('/v1/chat/completions', { ...init, body });
    expect(again.status).toBe(200);
    await again.body?.cancel();
  });

  const caller = (name: string, limits: Caller['limits']): Caller => ({ name, role: 'user', cacheGroup: name, limits });
  const usageAt = (clock: { ms: number }, queueMax = 100) =>
    new CallerUsage({ nowMs: () => clock.ms, queueMax, sharesQueue: () => true });

  it('requests and tokens of a minute refill evenly', () => {
    const clock = { ms: 0 };
    const usage = usageAt(clock);
    const one = caller('a', { requestsPerMinute: 2 });
    usage.begin(one, 1, 5).ended(5);
    usage.begin(one, 1, 5).ended(5);
    expect(() => usage.check(one)).toThrow('requests_per_minute of 2');
    clock.ms += 30_000;
    usage.begin(one, 1, 5).ended(5);
    expect(() => usage.check(one)).toThrow('requests_per_minute');
    const other = caller('b', { tokensPerMinute: 60 });
    usage.begin(other, 1, 50).ended(40);
    expect(() => usage.check(other)).toThrow('tokens_per_minute of 60');
    clock.ms += 31_000;
    usage.check(other);
  });

  it('a request is queued until its first token', () => {
    const usage = usageAt({ ms: 0 });
    const one = caller('a', { queuedRequests: 1 });
    const first = usage.begin(one, 1, 5);
    expect(() => usage.check(one)).toThrow('queued_requests of 1');
    first.started();
    usage.begin(one, 1, 5).ended(0);
    first.ended(1);
    usage.check(one);
  });

  it('a flood of one key leaves places of the queue for others', () => {
    const usage = usageAt({ ms: 0 }, 30);
    const fill = (name: string): number => {
      let held = 0;
      try {
        for (; held < 100; held++) usage.begin(caller(name, {}), 1, 1);
      } catch (error) {
        expect(String(error)).toContain('places of the queue');
      }
      return held;
    };
    const held = ['a', 'b', 'c'].map(fill);
    expect(held).toEqual([15, 8, 4]);
    usage.begin(caller('d', {}), 1, 1);
  });

  it('a request that has ended holds no place of the queue', () => {
    const usage = usageAt({ ms: 0 }, 4);
    const one = caller('a', {});
    for (let i = 0; i < 5; i++) usage.begin(one, 2, 1).ended(1);
    usage.begin(one, 2, 1);
  });

  it('a tenant finds only files of its own', async () => {
    const files = new FileStore(1000, new GatewayIds(undefined));
    const { id } = await files.add(caller('a', {}), { filename: 'f', bytes: Buffer.from('x') });
    expect(files.get(id, 'a').filename).toBe('f');
    expect(() => files.get(id, 'b')).toThrow('Cannot find file');
    await expect(files.remove(id, 'b')).rejects.toThrow('Cannot find file');
  });
});
