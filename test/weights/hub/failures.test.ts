// A hub that fails, a hub that lies, a disk that is full: each one line, and no broken file.
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { commitA, refuse, sha256 } from './hub-server.ts';
import { createWorld, noise } from './world.ts';

const weights = noise(300_000);
/** A disk of one mebibyte. */
function mount(folder: string): boolean {
  return spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', folder]).status === 0;
}

const canMount = ((): boolean => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-mount-'));
  const can = process.getuid?.() === 0 && mount(folder);
  if (can) spawnSync('umount', [folder]);
  rmSync(folder, { recursive: true });
  return can;
})();

const ggufFiles = { 'tiny-Q8_0.gguf': weights, '.gitattributes': '*' };

describe('a hub that fails', () => {
  it.each([429, 500, 503])('%i passes: tried again, as long after as it asks', async (status) => {
    const { pull, hub, sleptMs } = await createWorld(ggufFiles);
    hub.misbehave = (_request, response, sent) => {
      if (sent > 0) return false;
      refuse(response, status, '', { 'retry-after': '7' });
      return true;
    };
    expect(readFileSync((await pull()).path).equals(weights)).toBe(true);
    expect(new Set(sleptMs)).toEqual(new Set([7000]));
  });

  it('that asks to wait for hours is not waited for', async () => {
    const { pull, hub } = await createWorld(ggufFiles);
    hub.misbehave = (_request, response) => {
      refuse(response, 429, '', { 'retry-after': '7200' });
      return true;
    };
    await expect(pull()).rejects.toThrow(/answered 429; it asks to wait 120 minutes$/);
  });

  const refusals: readonly (readonly [string, number, string, string, RegExp])[] = [
    [
      '401',
      401,
      '',
      'org/tiny',
      /private or gated \(401\): set HF_TOKEN, and accept its licence at http.*\/org\/tiny$/,
    ],
    ['403', 403, 'GatedRepo', 'org/tiny', /access is refused \(403\): .*accept its licence at http.*\/org\/tiny$/],
  ];
  it.each(refusals)('%s at the file: one line, and nothing is left', async (_name, status, code, model, message) => {
    const { pull, hub, blobs, cache } = await createWorld(ggufFiles);
    hub.misbehave = (request, response) => {
      if (!request.path.includes('/resolve/')) return false;
      refuse(response, status, code);
      return true;
    };
    await expect(pull(model)).rejects.toThrow(message);
    expect(blobs()).toEqual([]);
    expect(existsSync(cache.snapshot(commitA))).toBe(false);
  });

  it.each([
    ['org/none', /^Cannot download org\/none: there is no repository org\/none \(404\)$/],
    ['org/tiny@v9', /^Cannot download org\/tiny@v9: org\/tiny has no revision 'v9' \(404\)$/],
    [
      'org/tiny:no.gguf',
      /^Cannot use org\/tiny:no.gguf: the repository has no 'no.gguf'; its GGUF models: tiny-Q8_0.gguf$/,
    ],
  ])('%s: 404 says which part is missing', async (model, message) => {
    const { pull } = await createWorld(ggufFiles);
    await expect(pull(model)).rejects.toThrow(message);
  });

  it('sends the token to the endpoint, and to no other host', async () => {
    const { pull, hub } = await createWorld(ggufFiles);
    const store = await createWorld(ggufFiles);
    hub.misbehave = (request, response) => {
      if (!request.path.includes('/resolve/')) return false;
      // Another name of the same machine is another origin.
      response
        .writeHead(302, { location: `${store.hub.url.replace('127.0.0.1', 'localhost')}/cdn${request.path}` })
        .end();
      return true;
    };
    await pull('org/tiny', { token: 'secret' });
    expect(new Set(hub.seen.map(({ authorization }) => authorization))).toEqual(new Set(['Bearer secret']));
    expect(store.hub.seen.map(({ authorization }) => authorization)).toEqual([undefined]);
  });
});

describe('a hub that lies', () => {
  it('about the hash: fetched once more, then refused, and nothing is left', async () => {
    const { pull, hub, blobs } = await createWorld(ggufFiles);
    hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: 'c'.repeat(64), size: weights.byteLength } });
    hub.misbehave = (request, response, _sent, content) => {
      if (!request.path.startsWith('/org/')) return false;
      response.writeHead(200).end(content);
      return true;
    };
    await expect(pull()).rejects.toThrow(
      /tiny-Q8_0.gguf: what came has another hash than the sha256 c+ that the hub lists, twice$/,
    );
    expect(hub.seen.filter(({ path }) => path.includes('/resolve/'))).toHaveLength(2);
    expect(blobs()).toEqual([]);
  });

  it('once, by a bad copy on the way: the second is taken', async () => {
    const { pull, hub } = await createWorld(ggufFiles);
    hub.misbehave = (request, response, sent, content) => {
      if (!request.path.startsWith('/cdn/') || content === undefined || sent > 0) return false;
      response.writeHead(200).end(noise(content.byteLength, 5));
      return true;
    };
    expect(readFileSync((await pull()).path).equals(weights)).toBe(true);
  });

  it.each([
    ['more', 299_999, /sends more than the 299999 bytes that the hub lists$/],
    ['less', 300_001, /the connection was cut at \d+ of 300001 bytes/],
  ])('about the size, sending %s without a length: never written beyond the list', async (_name, size, message) => {
    const { pull, hub, blobs } = await createWorld(ggufFiles);
    hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: sha256(weights), size } });
    hub.misbehave = (request, response, _sent, content) => {
      if (!request.path.startsWith('/org/')) return false;
      response.writeHead(200).end(request.range === undefined ? content : undefined);
      return true;
    };
    await expect(pull()).rejects.toThrow(message);
    expect(blobs()).not.toContain(sha256(weights));
  });

  it('about the size, with a length that tells: refused before a byte is written', async () => {
    const { pull, hub, blobs } = await createWorld(ggufFiles);
    hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: sha256(weights), size: 5 } });
    await expect(pull()).rejects.toThrow(/the server sends 300000 bytes where the hub lists 5$/);
    expect(blobs()).toEqual([]);
  });

  it.each(['../x.gguf', '/etc/x.gguf', 'a/../../x.gguf', 'a\\x.gguf', 'a//x.gguf', 'x\u0000.gguf'])(
    'about where a file is (%j): the list is refused',
    async (path) => {
      const { pull, hub, cache } = await createWorld(ggufFiles);
      hub.listed.set('tiny-Q8_0.gguf', { path });
      await expect(pull()).rejects.toThrow(/which is outside the repository$/);
      expect(existsSync(cache.folder)).toBe(false);
    },
  );

  it.each([
    ['sha', { sha: '../../../etc' }],
    ['list', 'nothing'],
  ])('with a misshapen %s: refused', async (_name, body) => {
    const { pull, hub } = await createWorld(ggufFiles);
    hub.misbehave = (request, response) => {
      if (!request.path.includes('/revision/')) return false;
      response.writeHead(200).end(JSON.stringify(body));
      return true;
    };
    await expect(pull()).rejects.toThrow(/^Cannot use org\/tiny: the hub's answer is misshapen/);
  });

  it('with pages of the list on another host: refused, token kept', async () => {
    const { pull, hub } = await createWorld(ggufFiles);
    hub.misbehave = (request, response) => {
      if (!request.path.includes('/tree/')) return false;
      response.writeHead(200, { link: '<http://localhost:1/api>; rel="next"' }).end('[]');
      return true;
    };
    await expect(pull()).rejects.toThrow(/goes on at another host/);
  });
});

describe('a full disk', () => {
  it('is seen before anything is fetched', async () => {
    const { pull, hub, blobs } = await createWorld(ggufFiles);
    hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: sha256(weights), size: 2 ** 52 } });
    await expect(pull()).rejects.toThrow(
      /the disk is full: 4503599627370496 more bytes needed, \d+ free in .*; what is there will be resumed$/,
    );
    expect(blobs()).toEqual([]);
    expect(hub.fetched()).toEqual([]);
  });

  it.skipIf(!existsSync('/dev/full'))(
    'in the middle is one line with what is needed and free (needs /dev/full)',
    async () => {
      const { pull, cache } = await createWorld(ggufFiles);
      mkdirSync(cache.blobFolder, { recursive: true });
      symlinkSync('/dev/full', cache.partial(sha256(weights)));
      await expect(pull()).rejects.toMatchObject({
        kind: 'disk',
        message: expect.stringMatching(
          /^Cannot download org\/tiny: the disk is full: 300000 more bytes needed, \d+ free in /,
        ),
      });
    },
  );

  it.skipIf(!canMount)(
    'in the middle keeps what came, and goes on when there is room (needs to mount a tmpfs)',
    async () => {
      const { pull, hub } = await createWorld(ggufFiles);
      const cacheFolder = mkdtempSync(join(tmpdir(), 'kvasir-full-'));
      mount(cacheFolder);
      try {
        const filler = join(cacheFolder, 'filler');
        hub.misbehave = (request) => {
          if (!request.path.startsWith('/cdn/') || existsSync(filler)) return false;
          writeFileSync(filler, noise(800_000));
          return false;
        };
        await expect(pull('org/tiny', { cacheFolder })).rejects.toThrow(
          /^Cannot download org\/tiny: the disk is full: /,
        );
        rmSync(filler);
        hub.misbehave = () => false;
        const { path } = await pull('org/tiny', { cacheFolder });
        expect(readFileSync(path).equals(weights)).toBe(true);
        expect(hub.seen.at(-1)?.range).toMatch(/^bytes=[1-9]\d+-$/);
      } finally {
        spawnSync('umount', [cacheFolder]);
        rmSync(cacheFolder, { recursive: true });
      }
    },
  );

  it.skipIf(process.getuid?.() === 0)('a cache that cannot be written is one line (not as root)', async () => {
    const { pull, cacheFolder } = await createWorld(ggufFiles);
    chmodSync(cacheFolder, 0o500);
    await expect(pull()).rejects.toThrow(/^Cannot download org\/tiny: EACCES/);
  });
});
