// Instances with one full layer and two sparse ones, for tests of requests with a KV budget.
import type { SparsityConfig } from '../../../src/core/kvcache/sparsity/sparse-plan.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import type { LayerGroup } from '../../../src/util/step.ts';
import { limits, World } from '../instance-world.ts';

export const sparsity: SparsityConfig = {
  shape: 'uniform',
  budget: 64,
  recent: 8,
  observed: 40,
  pooling: { kind: 'max', width: 1 },
  headReduce: 'max',
  compactEvery: 0,
  keepsFull: true,
  slotPagesOfState: 1,
};
export const groups: readonly LayerGroup[] = [
  { layers: 1, window: undefined },
  { layers: 2, window: undefined, sparse: true },
];
/** Two layers with 64 tokens, and as many pages of states. */
export const slotPages = 2 * 2 + 4;

export type Settings = ConstructorParameters<typeof World>[0];

/** The output of a request in an instance of its own, which has room for all. */
export function alone(one: GenerationRequest, settings: Settings): readonly number[] {
  const world = new World({ groups, sparsity, ...settings, pages: 300, limits });
  world.submit(one);
  world.finishAll();
  return world.of(one.id).tokens;
}
