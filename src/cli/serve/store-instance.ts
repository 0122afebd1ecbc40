// A store: an instance that computes nothing and caches the blocks of others in memory and on SSD.

import { createTokenInstance } from '../../core/instance/token-instance.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';
import { chooseInputs, matrixTypes } from '../../engine/forms.ts';
import { kvShapeOf } from '../../engine/load-model.ts';
import type { Isa } from '../../kernel/backend.ts';
import { InstanceLoop } from '../../runtime/threads/instance-loop.ts';
import type { ThreadEndpoint } from '../../runtime/threads/thread-bus.ts';
import type {
  BlockRoot,
  InstanceDescription,
  InstanceThreadData,
  ReadyMessage,
} from '../../runtime/threads/thread-protocol.ts';
import { openModel } from '../../weights/open-model.ts';
import { sparseLayers } from '../options/sparse-options.ts';
import { createBackend } from './backend.ts';
import { blockRoot } from './block-root.ts';
import { createHandOffs, createThreadLog, fetchBytesPerToken } from './instance-links.ts';
import { openTiers, tierSizes } from './instance-tiers.ts';
import type { InstanceSettings } from './worker-settings.ts';

/** The engine of a thread and its description. */
export interface ServedInstance {
  readonly loop: InstanceLoop;
  readonly ready: Omit<ReadyMessage, 'kind' | 'snapshot'>;
}

const noExecutor = {
  run(): never {
    throw new Error('Cannot run a step: a store computes nothing');
  },
};

/** Reads the shape and fingerprint of the model without weights. @throws Error in one line */
export function createStore(data: InstanceThreadData<InstanceSettings>, own: ThreadEndpoint): ServedInstance {
  const { settings, hashKey, role } = data;
  const log = createThreadLog(own);
  const backend = createBackend(1, log);
  const { kv, layers, root } = shapeOf(settings, backend.isa);
  if (backend.isa === 'reference') throw new Error('Cannot start a store: the native kernels are not compiled');
  const sizes = tierSizes(settings, kv);
  if (sizes === undefined) throw new Error('Cannot start a store: there is neither host memory nor SSD for blocks');
  const pool = backend.createKvPool({ pages: sizes.pages, kvHeads: kv.kvHeads, headDim: kv.headDim, type: kv.type });
  const wake = (): void => loop.wake();
  const place = { kv, layers, pool, isa: backend.isa, root, hashKey, sizes, log };
  const tiers = openTiers(settings.tiers?.ssd, place, wake);
  const machine = createTokenInstance({
    ...{ pages: 0, groups: kv.groups, eviction: settings.eviction, limits: batchLimits, queueMax: 0 },
    ...{ root, hashKey, incarnation: data.incarnation, isStore: true },
    ...tiers.machine,
  });
  const handOffs = createHandOffs(data, own, { pool, kv, layers }, wake);
  const parts = { handOffs, tiers: tiers.live };
  const loop = new InstanceLoop(machine, noExecutor, own, data.abort, log, parts);
  const description: InstanceDescription = {
    ...{ weights: 'none', inputs: root.inputForm, isa: backend.isa, threads: 0, weightBytes: 0, kvBytes: 0 },
    ...{ contextTokens: settings.contextTokens, capacityTokens: 0, role },
    fetchBytesPerToken: fetchBytesPerToken(kv, true),
    pagesAddress: handOffs?.address,
    tiers: tiers.description,
  };
  return { loop, ready: { description, root, shared: undefined } };
}

function shapeOf({ model, weights, kvType, contextTokens, sparse, ...settings }: InstanceSettings, isa: Isa) {
  const files = openModel(model);
  try {
    const inputs = chooseInputs(settings.inputs, isa, matrixTypes(files, weights)).form;
    const layers = sparse && sparseLayers(sparse, files.config.layers);
    const shape = kvShapeOf(files, { weights, inputs, kvType, context: contextTokens, sparseLayers: layers });
    return { ...shape, root: blockRoot(files, { weights, inputs, kvType }, layers) satisfies BlockRoot };
  } finally {
    files.close();
  }
}
