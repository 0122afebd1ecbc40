// Steps before the first request: they touch the memory of a program and fill caches.
import { pageTokens } from '../util/step.ts';
import type { Engine } from './engine.ts';
import type { LoadedModel } from './load-model.ts';
import { groupedStep, plainPages } from './plain-step.ts';

type WarmedEngine = Pick<Engine, 'run' | 'pages' | 'tokensMax'> & {
  readonly model: Pick<LoadedModel, 'context'> & { readonly kv: Pick<LoadedModel['kv'], 'groups'> };
};

/** The longest warm-up step, unless the time is over before. */
const rowsMax = 512;
/** No longer step begins after this time. */
const timeUsMax = 200_000;
/** The same steps again take the time of later steps. */
const repeats = 2;

/**
 * Runs steps of one sequence with 1, 2, 4, ... rows over pages without content, twice each.
 * @param nowUs a steady clock
 */
export function warmUp(engine: WarmedEngine, nowUs: () => number): void {
  const { groups } = engine.model.kv;
  const layers = groups.reduce((sum, group) => sum + group.layers, 0);
  const blocksMax = Math.floor(engine.pages / layers);
  const most = Math.min(rowsMax, engine.tokensMax, engine.model.context, blocksMax * pageTokens);
  const pages = plainPages(Math.ceil(most / pageTokens), groups);
  const startedUs = nowUs();
  const abort = new Int32Array(1);
  for (let rows = 1; rows <= most && nowUs() - startedUs < timeUsMax; rows *= 2) {
    const blocks = Array.from({ length: Math.ceil(rows / pageTokens) }, (_, i) => i);
    const step = groupedStep([{ tokens: new Int32Array(rows), start: 0, blocks, logits: 'last' }], pages);
    step.sampling.topLogprobs.fill(0);
    for (let i = 0; i < repeats; i++) engine.run(step, abort);
  }
}
