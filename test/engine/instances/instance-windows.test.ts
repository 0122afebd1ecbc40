// Instances over real engines: models with windows give the same bits in a batch and in few pages as alone.
import { existsSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { openTiers } from '../../../src/cli/serve/instance-tiers.ts';
import { blockPages, pagesFor } from '../../../src/core/kvcache/layer-groups.ts';
import { Engine } from '../../../src/engine/engine.ts';
import { greedyTokens } from '../../../src/engine/greedy.ts';
import { freeModel, loadModel } from '../../../src/engine/load-model.ts';
import { pageTokens } from '../../../src/util/step.ts';
import { baseConfig, greedy, limits, request } from '../../core/instance-world.ts';
import { type NamedBackend, nativeBackends } from '../backends.ts';
import { sharedModels } from '../goldens.ts';
import { someTokens } from '../play.ts';
import { serve, tokensMax } from './serve-requests.ts';

const native = nativeBackends.at(-1);

type EngineSource = Pick<ConstructorParameters<typeof Engine>[0], 'backend' | 'model'>;

describe.skipIf(native === undefined).each(['mistral-window', 'gemma2', 'gemma3'])('%s, which has windows', (name) => {
  const path = `${sharedModels}/random/${name}`;
  const withEngines = (use: (few: Engine, plenty: Engine, of: EngineSource) => void): void => {
    const backend = (native as NamedBackend).create(2);
    const model = loadModel({ model: path, backend, weights: 'bf16', inputs: 'bf16' });
    const { groups, pageBytes } = model.kv;
    const layers = groups.reduce((sum, group) => sum + group.layers, 0);
    const engineOf = (pages: number): Engine =>
      new Engine({ model, backend, tokensMax, logitRowsMax: 32, kvBytes: pages * pageBytes });
    // Enough for a chunk beside the longest sequence, which would take 20 blocks without windows.
    const engines = [engineOf(pagesFor(groups, 640, pageTokens) + 4 * layers), engineOf(20 * layers)] as const;
    use(...engines, { backend, model });
    for (const engine of engines) engine.close();
    freeModel(model, backend);
    backend.close();
  };

  test.skipIf(!existsSync(path))('gives the same bits when host memory has the prefixes that the pool has lost', () => {
    withEngines((few, plenty, { backend, model }) => {
      const { kv } = model;
      const blockLayers = blockPages(kv.groups);
      const [poolPages, hostBlocks] = [few.pages, 60];
      const sizes = { hostBlocks, ssdBlocks: 0, pages: (hostBlocks + 1) * blockLayers };
      const kvBytes = (poolPages + sizes.pages) * kv.pageBytes;
      const tiered = new Engine({ model, backend, tokensMax, logitRowsMax: 32, kvBytes });
      const { root, hashKey } = baseConfig;
      const place = { sizes, kv, layers: tiered.layers, pool: tiered.pool, isa: backend.isa, root, hashKey };
      const tiers = openTiers(undefined, { ...place, log: () => undefined }, () => undefined);
      // The pool holds one of these prompts, host memory all; the last ones branch off inside and behind a window.
      const prompts = [0, 1, 2, 0, 1, 2].map((kind) => someTokens(450, model.config.vocabSize, 20 + kind));
      for (const length of [100, 330])
        prompts.push([...(prompts[0] ?? []).slice(0, length), ...someTokens(40, model.config.vocabSize, 30)]);
      const requests = prompts.map((prompt, i) =>
        request(`r${i}`, prompt, { maxTokens: 8, sampling: { ...greedy, topLogprobs: 0 } }),
      );
      const alone = { pages: poolPages, limits: { ...limits, tokensMax, sequencesMax: 1, logitRowsMax: 32 } };
      const { heard, snapshot } = serve(tiered, requests, { ...alone, ...tiers.machine }, [], tiers.live);
      for (const [i, { id, maxTokens }] of requests.entries()) {
        const expected = [...greedyTokens(plenty, prompts[i] ?? [], maxTokens)];
        expect(heard.get(id)?.tokens).toEqual(expected.map(({ token }) => token));
        expect(heard.get(id)?.logprobs).toEqual(expected.map(({ logprob }) => logprob));
      }
      expect(requests.map(({ id }) => heard.get(id)?.cachedTokens)).toEqual([0, 0, 0, 448, 448, 448, 96, 320]);
      expect(snapshot.tiers?.reads.host).toBeGreaterThan(20);
      tiered.close();
    });
  });

  test.skipIf(!existsSync(path))('gives the bits of a single request in a batch, from cache and in few pages', () => {
    withEngines((few, plenty) => {
      const vocabulary = few.model.config.vocabSize;
      const shared = someTokens(150, vocabulary, 3);
      const prompts = [150, 1, 40, 450, 70, 5].map((length, i) => [
        ...shared,
        ...someTokens(length, vocabulary, 11 + i),
      ]);
      const requests = prompts.map((prompt, i) =>
        request(`r${i}`, prompt, { maxTokens: i === 3 ? 40 : 24, sampling: { ...greedy, topLogprobs: 0 } }),
      );
      const { heard, usedPagesMax, snapshot } = serve(few, requests);
      for (const [i, { id, maxTokens }] of requests.entries()) {
        const alone = [...greedyTokens(plenty, prompts[i], maxTokens)];
        expect(heard.get(id)?.tokens).toEqual(alone.map(({ token }) => token));
        expect(heard.get(id)?.logprobs).toEqual(alone.map(({ logprob }) => logprob));
      }
      expect(snapshot.cachedTokens).toBeGreaterThan(0);
      expect(usedPagesMax).toBeLessThanOrEqual(few.pages);
      expect(snapshot.pages.used).toBe(0);
    });
  });
});
