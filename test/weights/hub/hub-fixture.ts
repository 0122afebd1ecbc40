// A hub server, a cache and a client for one test.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { RepositoryCache } from '../../../src/weights/hub/cache.ts';
import { HubClient, type HubClientOptions } from '../../../src/weights/hub/client.ts';
import { type PullEvent, type PulledModel, pullModel } from '../../../src/weights/hub/pull.ts';
import { type HubReference, parseHubReference } from '../../../src/weights/hub/reference.ts';
import type { HubSettings } from '../../../src/weights/hub/settings.ts';
import { commitA, type HubServer, type ServedRepository, startHubServer } from './hub-server.ts';

export interface HubFixture {
  readonly hub: HubServer;
  readonly cacheFolder: string;
  readonly cache: RepositoryCache;
  readonly events: PullEvent[];
  /** Delays between attempts; the tests do not wait. */
  readonly sleptMs: number[];
  pull(model?: string, settings?: Partial<HubSettings>, options?: HubClientOptions): Promise<PulledModel>;
  /** File names in the blob folder. */
  blobs(): string[];
}

export async function createHubFixture(files: ServedRepository['files']): Promise<HubFixture> {
  const hub = await startHubServer({ 'org/tiny': { commit: commitA, files } });
  const cacheFolder = mkdtempSync(join(tmpdir(), 'kvasir-hub-'));
  onTestFinished(async () => {
    await hub.close();
    rmSync(cacheFolder, { recursive: true, force: true });
  });
  const cache = new RepositoryCache(cacheFolder, 'org/tiny');
  const events: PullEvent[] = [];
  const sleptMs: number[] = [];
  return {
    hub,
    cacheFolder,
    cache,
    events,
    sleptMs,
    pull(model = 'org/tiny', settings = {}, options = {}) {
      const all = { endpoint: hub.url, token: undefined, cacheFolder, offline: false, ...settings };
      const sleep = async (ms: number): Promise<void> => {
        sleptMs.push(ms);
      };
      return pullModel(new HubClient(all, { sleep, ...options }), reference(model), (event) => events.push(event));
    },
    blobs: () => readdirSync(cache.blobFolder).toSorted(),
  };
}

export function reference(text: string): HubReference {
  const parsed = parseHubReference(text);
  if (parsed === undefined) throw new Error(`no reference: ${text}`);
  return parsed;
}

/** Bytes without repetition, so that a resume at a wrong offset is detected. */
export function noise(bytes: number, seed = 1): Buffer {
  const content = Buffer.alloc(bytes);
  for (let index = 0, state = seed; index < bytes; index++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    content[index] = state >>> 24;
  }
  return content;
}
