// Failures of the hub, invalid responses and full disks: each gives a one-line error and leaves no corrupt file.
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
import { createHubFixture, noise } from './hub-fixture.ts';
import { commitA, refuse, sha256 } from './hub-server.ts';

const weights = noise(300_000);
/** Mounts a disk of one mebibyte. */
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

describe('hub failures', () => {
  it.each([429, 500, 503])('status %i is retried after the delay that the hub asks for', async (status) => {
    const { pull, hub, sleptMs } = await createHubFixture(ggufFiles);
    hub.misbehave = (_request, response, sent) => {
      if (sent > 0) return false;
      refuse(response, status, '', { 'retry-after': '7' });
      return true;
    };
    expect(readFileSync((await pull()).path).equals(weights)).toBe(true);
    expect(new Set(sleptMs)).toEqual(new Set([7000]));
  });

  it('a retry delay of hours ends the download', async () => {
    const { pull, hub } = await createHubFixture(ggufFiles);
    hub.misbehave = (_request, response) => {
      refuse(response, 429, '', { 'retry-after': '7200' });
      return true;
    };
    await expect(pull()).rejects.toThrow(/answered 429; the server asks to wait 120 minutes$/);
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
  it.each(refusals)(
    'status %s for a file: one-line error, no file stays in the cache',
    async (_name, status, code, model, message) => {
      const { pull, hub, blobs, cache } = await createHubFixture(ggufFiles);
      hub.misbehave = (request, response) => {
        if (!request.path.includes('/resolve/')) return false;
        refuse(response, status, code);
        return true;
      };
      await expect(pull(model)).rejects.toThrow(message);
      expect(blobs()).toEqual([]);
      expect(existsSync(cache.snapshot(commitA))).toBe(false);
    },
  );

  it.each([
    ['org/none', /^Cannot download org\/none: there is no repository org\/none \(404\)$/],
    ['org/tiny@v9', /^Cannot download org\/tiny@v9: org\/tiny has no revision 'v9' \(404\)$/],
    [
      'org/tiny:no.gguf',
      /^Cannot use org\/tiny:no.gguf: the repository has no 'no.gguf'; its GGUF models: tiny-Q8_0.gguf$/,
    ],
  ])('%s: a 404 error names the missing part', async (model, message) => {
    const { pull } = await createHubFixture(ggufFiles);
    await expect(pull(model)).rejects.toThrow(message);
  });

  it('sends the token to the endpoint only', async () => {
    const { pull, hub } = await createHubFixture(ggufFiles);
    const store = await createHubFixture(ggufFiles);
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

describe('invalid hub responses', () => {
  it('a wrong hash is downloaded once more, then refused, and no file stays in the cache', async () => {
    const { pull, hub, blobs } = await createHubFixture(ggufFiles);
    hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: 'c'.repeat(64), size: weights.byteLength } });
    hub.misbehave = (request, response, _sent, content) => {
      if (!request.path.startsWith('/org/')) return false;
      response.writeHead(200).end(content);
      return true;
    };
    await expect(pull()).rejects.toThrow(
      /tiny-Q8_0.gguf: two downloads do not match the sha256 c+ that the hub lists$/,
    );
    expect(hub.seen.filter(({ path }) => path.includes('/resolve/'))).toHaveLength(2);
    expect(blobs()).toEqual([]);
  });

  it('a corrupt first download is replaced by the second', async () => {
    const { pull, hub } = await createHubFixture(ggufFiles);
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
  ])(
    'a body with %s bytes than listed and no length never exceeds the listed size on disk',
    async (_name, size, message) => {
      const { pull, hub, blobs } = await createHubFixture(ggufFiles);
      hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: sha256(weights), size } });
      hub.misbehave = (request, response, _sent, content) => {
        if (!request.path.startsWith('/org/')) return false;
        response.writeHead(200).end(request.range === undefined ? content : undefined);
        return true;
      };
      await expect(pull()).rejects.toThrow(message);
      expect(blobs()).not.toContain(sha256(weights));
    },
  );

  it('a wrong content-length is refused before a byte is written', async () => {
    const { pull, hub, blobs } = await createHubFixture(ggufFiles);
    hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: sha256(weights), size: 5 } });
    await expect(pull()).rejects.toThrow(/the server sends 300000 bytes where the hub lists 5$/);
    expect(blobs()).toEqual([]);
  });

  it.each(['../x.gguf', '/etc/x.gguf', 'a/../../x.gguf', 'a\\x.gguf', 'a//x.gguf', 'x\u0000.gguf'])(
    'a list with the path %j is refused',
    async (path) => {
      const { pull, hub, cache } = await createHubFixture(ggufFiles);
      hub.listed.set('tiny-Q8_0.gguf', { path });
      await expect(pull()).rejects.toThrow(/which is outside the repository$/);
      expect(existsSync(cache.folder)).toBe(false);
    },
  );

  it.each([
    ['sha', { sha: '../../../etc' }],
    ['list', 'nothing'],
  ])('an invalid %s is refused', async (_name, body) => {
    const { pull, hub } = await createHubFixture(ggufFiles);
    hub.misbehave = (request, response) => {
      if (!request.path.includes('/revision/')) return false;
      response.writeHead(200).end(JSON.stringify(body));
      return true;
    };
    await expect(pull()).rejects.toThrow(/^Cannot use org\/tiny: the hub's response is invalid/);
  });

  it('a next page on another host is refused, so the token is not sent there', async () => {
    const { pull, hub } = await createHubFixture(ggufFiles);
    hub.misbehave = (request, response) => {
      if (!request.path.includes('/tree/')) return false;
      response.writeHead(200, { link: '<http://localhost:1/api>; rel="next"' }).end('[]');
      return true;
    };
    await expect(pull()).rejects.toThrow(/the next page of its file list is on another host/);
  });
});

describe('disk errors', () => {
  it('too little free space is detected before a download', async () => {
    const { pull, hub, blobs } = await createHubFixture(ggufFiles);
    hub.listed.set('tiny-Q8_0.gguf', { lfs: { oid: sha256(weights), size: 2 ** 52 } });
    await expect(pull()).rejects.toThrow(
      /the disk is full: 4503599627370496 more bytes needed, \d+ free in .*; the next pull resumes the download$/,
    );
    expect(blobs()).toEqual([]);
    expect(hub.fetched()).toEqual([]);
  });

  it.skipIf(!existsSync('/dev/full'))(
    'a disk that fills during a download gives one line with needed and free bytes (needs /dev/full)',
    async () => {
      const { pull, cache } = await createHubFixture(ggufFiles);
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
    'a disk that fills keeps the partial file; the next pull resumes it (needs to mount a tmpfs)',
    async () => {
      const { pull, hub } = await createHubFixture(ggufFiles);
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

  it.skipIf(process.getuid?.() === 0)('a read-only cache gives a one-line error (not as root)', async () => {
    const { pull, cacheFolder } = await createHubFixture(ggufFiles);
    chmodSync(cacheFolder, 0o500);
    await expect(pull()).rejects.toThrow(/^Cannot download org\/tiny: EACCES/);
  });
});
