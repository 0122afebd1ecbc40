// Pulling from a hub: the cache's layout, reuse of cached files, and resumed downloads.
import { existsSync, lstatSync, mkdirSync, readFileSync, readlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { createHubFixture, noise } from './hub-fixture.ts';
import { commitA, commitB, cutAfter, gitSha1, sha256 } from './hub-server.ts';

const weights = noise(300_000);
const folderFiles = {
  'config.json': '{"model_type": "llama"}',
  'tokenizer.json': '{"a": 1}',
  'model.safetensors': weights,
  'pytorch_model.bin': noise(2000, 3),
  'README.md': 'words',
};
const ggufFiles = { 'tiny-Q8_0.gguf': weights, '.gitattributes': '*' };
const partial = (bytes: Uint8Array): string => `${sha256(bytes)}.kvasir.incomplete`;

describe('the cache of a pull', () => {
  it('holds blobs by hash, a snapshot of links and the ref; unneeded files are not downloaded', async () => {
    const { pull, cache, hub, blobs } = await createHubFixture(folderFiles);
    const model = await pull();
    expect(model).toMatchObject({ path: cache.snapshot(commitA), commit: commitA });
    expect([...model.files].toSorted()).toEqual(['config.json', 'model.safetensors', 'tokenizer.json']);
    expect(blobs()).toEqual(
      [gitSha1(folderFiles['config.json']), gitSha1(folderFiles['tokenizer.json']), sha256(weights)].toSorted(),
    );
    expect(readlinkSync(join(model.path, 'model.safetensors'))).toBe(`../../blobs/${sha256(weights)}`);
    expect(readFileSync(join(model.path, 'model.safetensors')).equals(weights)).toBe(true);
    expect(readFileSync(join(cache.folder, 'refs', 'main'), 'utf8')).toBe(commitA);
    expect(hub.fetched()).toHaveLength(3);
  });

  it('is reused: one listing, no download', async () => {
    const { pull, hub } = await createHubFixture(folderFiles);
    await pull();
    const before = hub.fetched().length;
    await pull();
    expect(hub.fetched()).toHaveLength(before);
  });

  it('reuses the blobs of another tool, also without a snapshot', async () => {
    const { pull, cache, hub } = await createHubFixture(ggufFiles);
    mkdirSync(cache.blobFolder, { recursive: true });
    writeFileSync(cache.blob(sha256(weights)), weights);
    const { path } = await pull();
    expect(readFileSync(path).equals(weights)).toBe(true);
    expect(hub.fetched()).toEqual([]);
  });

  it('shares blobs between revisions, and sends no request for a cached commit', async () => {
    const { pull, hub } = await createHubFixture(folderFiles);
    await pull();
    hub.repositories.set('org/tiny', {
      commit: commitB,
      files: { ...folderFiles, 'config.json': '{"model_type": "qwen2"}' },
    });
    const fetched = hub.fetched().length;
    expect((await pull()).commit).toBe(commitB);
    expect(hub.fetched().slice(fetched)).toEqual([`/cdn/org/tiny/resolve/${commitB}/config.json`]);
    const seen = hub.seen.length;
    expect((await pull(`org/tiny@${commitA}`)).commit).toBe(commitA);
    expect(hub.seen).toHaveLength(seen);
  });

  it('copies files when links are impossible', async () => {
    const { pull, cache } = await createHubFixture(ggufFiles);
    await pull();
    const fail = async (): Promise<void> => {
      throw new Error('no links here');
    };
    await cache.link(commitB, 'sub/copy.gguf', sha256(weights), fail);
    const copy = join(cache.snapshot(commitB), 'sub', 'copy.gguf');
    expect(lstatSync(copy).isFile()).toBe(true);
    expect(readFileSync(copy).equals(weights)).toBe(true);
  });

  it('serves the model when the network is down and reports it; offline mode sends no request', async () => {
    const { pull, hub, events } = await createHubFixture(folderFiles);
    const { path } = await pull();
    await hub.close();
    expect((await pull('org/tiny')).path).toBe(path);
    expect(events.at(-1)).toMatchObject({
      kind: 'cached-only',
      why: expect.stringContaining(`Cannot reach ${hub.url}: the connection`),
    });
    const seen = hub.seen.length;
    expect((await pull('org/tiny', { offline: true })).path).toBe(path);
    expect(hub.seen).toHaveLength(seen);
    await expect(pull('org/other', { offline: true })).rejects.toThrow(/HF_HUB_OFFLINE is set and the model is not in/);
    await expect(pull('org/other')).rejects.toThrow(/^Cannot reach http.*: the connection is refused \(4 times\)$/);
  });

  it('does not serve a model without weights when the network is down', async () => {
    const { pull, cache } = await createHubFixture(folderFiles);
    await pull();
    unlinkSync(cache.blob(sha256(weights)));
    await expect(pull('org/tiny', { offline: true })).rejects.toThrow('HF_HUB_OFFLINE');
  });
});

describe('a sharded safetensors model', () => {
  const shards = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'];
  const index = { weight_map: { a: shards[0], b: shards[1], c: shards[0] } };
  const files = {
    'config.json': '{}',
    'model.safetensors.index.json': JSON.stringify(index),
    'model-00001-of-00002.safetensors': noise(5000, 1),
    'model-00002-of-00002.safetensors': noise(5000, 1),
    'consolidated.safetensors': noise(9000, 2),
  };

  it('has the files of its index, downloads equal contents once, and is incomplete without a shard', async () => {
    const { pull, hub, cache } = await createHubFixture(files);
    const model = await pull();
    expect([...model.files].toSorted()).toEqual(['config.json', ...shards, 'model.safetensors.index.json']);
    expect(hub.fetched()).toHaveLength(3);
    expect((await pull('org/tiny', { offline: true })).files).toEqual(model.files);
    unlinkSync(join(cache.snapshot(commitA), shards[1] ?? ''));
    await expect(pull('org/tiny', { offline: true })).rejects.toThrow('HF_HUB_OFFLINE');
    await pull();
    expect(hub.fetched()).toHaveLength(3);
  });

  it.each([
    ['a shard that is not listed', { a: 'gone.safetensors' }, /names gone.safetensors, which the hub does not list$/],
    ['a shard outside', { a: '../x.safetensors' }, /'..\/x.safetensors' is not a plain file name$/],
    ['no map', 5, /is not a safetensors index$/],
  ])('an index with %s is refused in one line', async (_name, map, message) => {
    const { pull } = await createHubFixture({
      ...files,
      'model.safetensors.index.json': JSON.stringify({ weight_map: map }),
    });
    await expect(pull()).rejects.toThrow(message);
  });
});

describe('resuming', () => {
  it('resumes after each cut of the connection, with growing delays', async () => {
    const { pull, hub, sleptMs } = await createHubFixture(ggufFiles);
    hub.misbehave = (request, response, sent, content) => {
      if (!request.path.startsWith('/cdn/') || content === undefined || sent >= 3) return false;
      const start = Number(/\d+/.exec(request.range ?? '')?.[0] ?? 0);
      cutAfter(response, content, start, sent === 1 ? 0 : 70_000);
      return true;
    };
    const { path } = await pull();
    expect(readFileSync(path).equals(weights)).toBe(true);
    const cdn = hub.seen.filter((request) => request.path.startsWith('/cdn/'));
    const [first, second = 0, third = 0, fourth = 0] = cdn.map(({ range }) => Number(/\d+/.exec(range ?? '0')?.[0]));
    // A cut may lose bytes in flight.
    expect([first, third]).toEqual([0, second]);
    expect(second).toBeGreaterThan(0);
    expect(fourth).toBeGreaterThan(third);
    expect(sleptMs).toEqual([500, 1000, 500]);
  });

  it('gives up after several attempts without progress; the next pull resumes', async () => {
    const { pull, hub, blobs, cache } = await createHubFixture(ggufFiles);
    hub.misbehave = (request, response, sent, content) => {
      if (!request.path.startsWith('/cdn/') || content === undefined) return false;
      cutAfter(response, content, sent === 0 ? 0 : 50_000, sent === 0 ? 50_000 : 0);
      return true;
    };
    await expect(pull()).rejects.toThrow(
      /^Cannot download org\/tiny: tiny-Q8_0.gguf: the connection was cut.*\(6 times\)$/,
    );
    expect(blobs()).toEqual([partial(weights)]);
    expect(existsSync(cache.snapshot(commitA))).toBe(false);
    const { size } = lstatSync(cache.partial(sha256(weights)));
    expect(size).toBeGreaterThan(0);
    hub.misbehave = () => false;
    const { path } = await pull();
    expect(hub.seen.at(-1)?.range).toBe(`bytes=${size}-`);
    expect(readFileSync(path).equals(weights)).toBe(true);
    expect(blobs()).toEqual([sha256(weights)]);
  });

  it('restarts when the server does not support ranges', async () => {
    const { pull, hub } = await createHubFixture(ggufFiles);
    hub.ranges = false;
    hub.misbehave = (request, response, sent, content) => {
      if (!request.path.startsWith('/cdn/') || content === undefined || sent > 0) return false;
      cutAfter(response, content, 0, 50_000);
      return true;
    };
    const { path } = await pull();
    expect(readFileSync(path).equals(weights)).toBe(true);
  });

  it('verifies a complete partial file without a request', async () => {
    const { pull, hub, cache } = await createHubFixture(ggufFiles);
    mkdirSync(cache.blobFolder, { recursive: true });
    writeFileSync(cache.partial(sha256(weights)), weights);
    await pull();
    expect(hub.fetched()).toEqual([]);
  });

  it('discards a partial file longer than the listed size', async () => {
    const { pull, cache } = await createHubFixture(ggufFiles);
    mkdirSync(cache.blobFolder, { recursive: true });
    writeFileSync(cache.partial(sha256(weights)), noise(400_000, 9));
    expect(readFileSync((await pull()).path).equals(weights)).toBe(true);
  });

  it('stops on a signal and keeps the partial file', async () => {
    const { pull, hub, cache } = await createHubFixture(ggufFiles);
    const stop = new AbortController();
    hub.misbehave = (request, response, _sent, content) => {
      if (!request.path.startsWith('/cdn/') || content === undefined) return false;
      response.writeHead(200, { 'content-length': content.byteLength });
      response.write(content.subarray(0, 80_000));
      return true;
    };
    const pulling = pull('org/tiny', {}, { signal: stop.signal });
    const failed = expect(pulling).rejects.toMatchObject({
      kind: 'interrupted',
      message: expect.stringMatching(/^Interrupted: the next pull resumes org\/tiny/),
    });
    while ((lstatSync(cache.partial(sha256(weights)), { throwIfNoEntry: false })?.size ?? 0) < 80_000)
      await new Promise((resolve) => setImmediate(resolve));
    stop.abort();
    await failed;
    hub.misbehave = () => false;
    await pull();
    expect(hub.seen.at(-1)?.range).toBe('bytes=80000-');
  });

  it('cuts an idle connection', async () => {
    const { pull, hub } = await createHubFixture(ggufFiles);
    hub.misbehave = (request, response, sent, content) => {
      if (!request.path.startsWith('/cdn/') || content === undefined || sent > 0) return false;
      response.writeHead(200, { 'content-length': content.byteLength });
      response.write(content.subarray(0, 1000));
      return true;
    };
    const { path } = await pull('org/tiny', {}, { idleMs: 50 });
    expect(readFileSync(path).equals(weights)).toBe(true);
  });
});
