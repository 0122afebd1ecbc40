// The pool of an engine for tests of messengers: two blocks that steps of the embedded model compute.
import { Engine } from '../../src/engine/engine.ts';
import type { LoadedModel } from '../../src/engine/load-model.ts';
import { groupedStep, plainPages } from '../../src/engine/plain-step.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import type { PagePool } from './messenger.ts';

const tokens = Array.from({ length: 40 }, (_, i) => 3 + i * 7);

export function enginePages(
  model: LoadedModel,
  backend: Backend,
): { readonly pool: PagePool; readonly engine: Engine } {
  const engine = new Engine({ model, backend, tokensMax: 64, logitRowsMax: 1, kvBytes: 2 ** 22 });
  const { groups, pageBytes } = model.kv;
  const pages = plainPages(2, groups);
  const step = groupedStep([{ tokens, start: 0, blocks: [0, 1], logits: 'last' }], pages);
  const pagesOf = (block: number) =>
    engine.layers.map(
      ({ group, index }) => pages[group]?.pageTable[block * (groups[group]?.layers ?? 0) + index] ?? -1,
    );
  const pool: PagePool = {
    ...{ pages: engine.pages, pageBytes, blocks: [pagesOf(0), pagesOf(1)] },
    step: (aborts) => {
      const { kind } = engine.run(step, Int32Array.of(aborts === undefined ? 0 : 1));
      if (kind !== (aborts === undefined ? 'done' : 'aborted')) throw new Error(`the step is ${kind}`);
    },
    read: (page) => engine.readPage(page),
    write: (page, values) => engine.writePage(page, values),
  };
  return { pool, engine };
}
