// Listing the cache and removing models from it: blobs that another snapshot uses stay.
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { cachedRepositories, planRemoval, remove } from '../../../src/weights/hub/cached-repositories.ts';
import { FolderLock } from '../../../src/weights/hub/lock.ts';
import { createHubFixture, noise, reference } from './hub-fixture.ts';
import { commitA, commitB, sha256 } from './hub-server.ts';

const shared = noise(5000, 1);
const old = noise(6000, 2);
const fresh = noise(7000, 3);

async function twoRevisions() {
  const fixture = await createHubFixture({ 'a-Q4_0.gguf': shared, 'a-Q8_0.gguf': old });
  await fixture.pull('org/tiny:Q4_0');
  await fixture.pull('org/tiny:Q8_0');
  fixture.hub.repositories.set('org/tiny', { commit: commitB, files: { 'a-Q4_0.gguf': shared, 'a-Q8_0.gguf': fresh } });
  await fixture.pull('org/tiny:Q4_0');
  await fixture.pull('org/tiny:Q8_0');
  return fixture;
}

describe('cached repositories', () => {
  it('are listed by repository and snapshot; shared content counts once, partial downloads separately', async () => {
    const { cacheFolder, cache } = await twoRevisions();
    writeFileSync(cache.partial('f'.repeat(64)), 'some');
    // Files that other tools leave next to the snapshots.
    writeFileSync(join(cacheFolder, 'CACHEDIR.TAG'), '');
    writeFileSync(join(cache.folder, 'snapshots', '.DS_Store'), '');
    symlinkSync('../../blobs/gone', join(cache.snapshot(commitA), 'dangling.gguf'));
    symlinkSync('.', join(cache.snapshot(commitA), 'round'));
    const [repository, ...others] = cachedRepositories(cacheFolder);
    expect(others).toEqual([]);
    expect(repository).toMatchObject({
      id: 'org/tiny',
      bytes: 18_004,
      incompleteBytes: 4,
      lastUsedMs: expect.any(Number),
    });
    const snapshots = repository?.snapshots.map(({ commit, revisions, files, bytes }) => [
      commit,
      revisions,
      files.length,
      bytes,
    ]);
    expect(snapshots).toEqual([
      [commitA, [], 2, 11_000],
      [commitB, ['main'], 2, 12_000],
    ]);
    expect(cachedRepositories(join(cacheFolder, 'none'))).toEqual([]);
  });

  it('removal by revision deletes the contents that no other snapshot uses', async () => {
    const { cacheFolder, blobs, cache } = await twoRevisions();
    const removal = planRemoval(cacheFolder, reference(`org/tiny@${commitA}`));
    expect(removal.bytes).toBe(6000);
    await remove(cacheFolder, removal);
    expect(blobs()).toEqual([sha256(shared), sha256(fresh)].toSorted());
    expect(readdirSync(join(cache.folder, 'snapshots'))).toEqual([commitB]);
    await remove(cacheFolder, planRemoval(cacheFolder, reference('org/tiny@main')));
    expect(blobs()).toEqual([]);
    expect(existsSync(join(cache.folder, 'refs', 'main'))).toBe(false);
  });

  it('removal by file', async () => {
    const { cacheFolder, blobs, cache } = await twoRevisions();
    await remove(cacheFolder, planRemoval(cacheFolder, reference('org/tiny:Q4_0')));
    expect(blobs()).toEqual([sha256(shared), sha256(old), sha256(fresh)].toSorted());
    await remove(cacheFolder, planRemoval(cacheFolder, reference(`org/tiny@${commitA}:Q4_0`)));
    expect(blobs()).toEqual([sha256(old), sha256(fresh)].toSorted());
    expect(readdirSync(cache.snapshot(commitB))).toEqual(['a-Q8_0.gguf']);
  });

  it('removal keeps contents outside the cache that a link points to', async () => {
    const { cacheFolder, cache } = await createHubFixture({});
    const outside = join(cacheFolder, 'mine.gguf');
    writeFileSync(outside, 'mine');
    mkdirSync(cache.snapshot(commitA), { recursive: true });
    symlinkSync(outside, join(cache.snapshot(commitA), 'x.gguf'));
    await remove(cacheFolder, planRemoval(cacheFolder, reference(`org/tiny@${commitA}`)));
    expect(existsSync(cache.snapshot(commitA))).toBe(false);
    expect(readFileSync(outside, 'utf8')).toBe('mine');
  });

  it('removal is refused during a download, and for a model that is not cached', async () => {
    const { cacheFolder, cache, blobs } = await twoRevisions();
    const removal = planRemoval(cacheFolder, reference('org/tiny'));
    const lock = await FolderLock.tryAcquire(cache.lockFolder);
    await expect(remove(cacheFolder, removal)).rejects.toMatchObject({ kind: 'busy' });
    expect(blobs()).toHaveLength(3);
    if (lock instanceof FolderLock) await lock.release();
    await remove(cacheFolder, removal);
    expect(existsSync(cache.folder)).toBe(false);
    for (const text of ['org/tiny', 'org/tiny@main', 'org/tiny:Q8_0'])
      expect(() => planRemoval(cacheFolder, reference(text))).toThrow(
        `Cannot remove ${text}: it is not in ${cacheFolder}`,
      );
  });
});
