// Sparse KV through whole models: a prompt is prefilled and selected, and its sequence decodes over slots or over chosen
// pages beside a dense one. Every backend gives the tokens of the reference.
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { type LoadedModel, loadModel } from '../../src/engine/load-model.ts';
import { groupedStep, type PlainSequence, plainPages } from '../../src/engine/plain-step.ts';
import { type AttentionForm, AttentionWorker, WorkerLink } from '../../src/kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend } from '../../src/kernel/native/native.ts';
import {
  boundPages,
  keptAfter,
  keptOfPrompt,
  pageTokens,
  type SlotTable,
  type Step,
  slotStatePages,
} from '../../src/util/step.ts';
import { backends, type NamedBackend, nativeBackends } from './backends.ts';

const path = fileURLToPath(new URL('../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));
const promptTokens = 150;
const outputTokens = 12;
const blocks = Math.ceil((promptTokens + outputTokens) / pageTokens);
const slotPages = 2;
const observed = 16;

type Mode = 'full' | 'replace' | 'compact' | 'quest';

const poolPages = 400;

interface Workers {
  readonly links: readonly WorkerLink[];
  readonly close: () => void;
}

/** Attention workers of this process with a KV head each. */
function openWorkers(backend: NativeBackend, { kv }: LoadedModel, form: AttentionForm): Workers {
  const shard = { type: kv.type, kvHeads: 1, headDim: kv.headDim };
  const workers = Array.from({ length: kv.kvHeads }, () => {
    const own = createNativeBackend({ threads: 1, isa: backend.isa });
    const pool = own.createKvPool({ ...shard, pages: poolPages });
    const address = { token: 'a secret', transport: 'tcp' } as const;
    const worker = new AttentionWorker({ backend: own, pool, host: '127.0.0.1', ...address });
    const link = new WorkerLink({ backend, shard, ...address, address: worker.address, form });
    const close = () => {
      link.close();
      worker.close();
      own.freeKvPool(pool);
      own.close();
    };
    return { link, close };
  });
  return { links: workers.map(({ link }) => link), close: () => workers.map(({ close }) => close()) };
}

/**
 * Greedy tokens of a sequence of each mode, in one batch. @param form of attention workers that compute attention, by KV
 * heads; undefined: the engine does
 */
function generate(
  { create }: NamedBackend,
  modes: readonly Mode[],
  chunk: number,
  form?: AttentionForm,
): { readonly tokens: readonly (readonly number[])[]; readonly calls: number } {
  const backend = create(2);
  const attention = form === undefined ? 'pages' : 'workers';
  const model = loadModel({ model: path, backend, inputs: 'f32', context: 256, attention });
  const { groups, headDim, type, pageBytes } = model.kv;
  const pagesAtWorkers = form !== undefined && { pagesAtWorkers: poolPages };
  const memory = { tokensMax: 768, logitRowsMax: 8, kvBytes: poolPages * pageBytes, ...pagesAtWorkers };
  const engine = new Engine({ model, backend, ...memory });
  const workers = form === undefined ? undefined : openWorkers(backend as NativeBackend, model, form);
  const attentionWorkers = workers && Int32Array.from(workers.links, ({ handle }) => handle);
  const { layers } = groups[0];
  const pages = plainPages(modes.length * blocks, groups);
  let next = modes.length * blocks * layers;
  const take = (count: number) => Int32Array.from({ length: count }, () => next++);
  const sequences = modes.map((mode, index) => ({
    mode,
    blocks: Array.from({ length: blocks }, (_, i) => index * blocks + i),
    tokens: Array.from({ length: promptTokens }, (_, i) => 3 + ((i * i * 7) % 200)),
    slots: slotsOf(layers, take, slotStatePages(layers * slotPages, headDim, type)),
    bounds: take(boundPages(blocks, layers)),
    budget: Int32Array.from({ length: layers }, (_, layer) => 40 - 3 * layer),
    kept: Int32Array.from({ length: layers }, (_, layer) => keptOfPrompt(promptTokens, 40 - 3 * layer)),
  }));
  const compactEvery = (mode: Mode) => (mode === 'compact' ? 5 : 0);
  const abort = new Int32Array(1);
  const run = (rows: readonly PlainSequence[], more: Partial<Step>): void => {
    const outcome = engine.run({ ...groupedStep(rows, pages), ...more, attentionWorkers }, abort);
    if (outcome.kind !== 'done') throw new Error('aborted');
    let logit = 0;
    for (const [i, { logits }] of rows.entries())
      if (logits === 'last') sequences[i].tokens.push(outcome.result.tokens[logit++]);
  };
  const slotted = sequences.flatMap((sequence, index) =>
    sequence.mode === 'replace' || sequence.mode === 'compact' ? [{ ...sequence, index }] : [],
  );
  const shared = { group: 0, recent: 8, headReduce: 'mean' } as const;
  const firstRows = Math.min(chunk, promptTokens - observed);
  for (const [from, to] of [
    [0, firstRows],
    [firstRows, promptTokens],
  ]) {
    const rows = sequences.map((sequence): PlainSequence => {
      const logits = to === promptTokens ? 'last' : 'none';
      return { tokens: sequence.tokens.slice(from, to), start: from, blocks: sequence.blocks, logits };
    });
    const pooling = { kind: 'max', width: 5 } as const;
    const selections = slotted.map(({ index, slots, budget }) => ({
      ...{ sequence: index, slots, budget, observed, pooling },
      ...shared,
    }));
    run(rows, to === promptTokens ? { selections } : {});
  }
  for (let made = 1; made < outputTokens; made++) {
    const start = promptTokens + made - 1;
    const rows = sequences.map(
      ({ tokens, mode, blocks: own }): PlainSequence => ({
        ...{ tokens: tokens.slice(-1), start, logits: 'last' },
        blocks: mode === 'replace' || mode === 'compact' ? [] : own,
      }),
    );
    const sparse = slotted.map(({ index, slots, budget, kept, mode }) => ({
      ...{ sequence: index, slots, budget, kept, compactEvery: compactEvery(mode), decay: 0.95 },
      ...shared,
    }));
    const pageSelections = sequences.flatMap(({ mode, bounds }, sequence) =>
      mode === 'quest' ? [{ sequence, group: 0, bounds, bounded: 0, budget: 3, topP: 1 }] : [],
    );
    run(rows, { sparse, pageSelections });
    for (const { kept, budget, mode } of slotted)
      for (let layer = 0; layer < layers; layer++)
        kept[layer] = keptAfter(kept[layer], budget[layer], compactEvery(mode), 1);
  }
  const calls = (workers?.links ?? []).reduce((sum, { counts }) => sum + counts.calls, 0);
  workers?.close();
  engine.close();
  backend.close();
  return { tokens: sequences.map(({ tokens }) => tokens.slice(promptTokens)), calls };
}

function slotsOf(layers: number, take: (count: number) => Int32Array, states: number): SlotTable {
  const pageStart = Int32Array.from({ length: layers + 1 }, (_, layer) => layer * slotPages);
  return { pages: take(layers * slotPages), pageStart, states: take(states) };
}

describe('sequences with sparse KV', () => {
  const modes: readonly Mode[] = ['replace', 'full', 'quest', 'compact'];
  const expected = generate(backends[0], modes, 100).tokens;

  test.each(nativeBackends)('$name generates the tokens of the reference', (backend) => {
    expect(generate(backend, modes, 100).tokens).toEqual(expected);
  });

  test.skipIf(nativeBackends.length === 0)('tokens do not depend on chunks or on the rest of the batch', () => {
    const backend = nativeBackends[0];
    expect(generate(backend, modes, 37).tokens).toEqual(expected);
    expect(generate(backend, ['replace'], 64).tokens).toEqual([expected[0]]);
  });

  test.skipIf(nativeBackends.length === 0).each(['ranges', 'prev-new'] as const)(
    'attention workers with a KV head each give the same tokens without further messages, in the form %s',
    (form) => {
      const backend = nativeBackends[nativeBackends.length - 1];
      const sparse = generate(backend, modes, 100, form);
      expect(sparse.tokens).toEqual(expected);
      expect(sparse.calls).toBe(generate(backend, ['full'], 100, form).calls);
    },
  );

  test('tokens of the same prompt differ from those of full attention', () => {
    const [replace, full, quest] = expected.map((tokens) => tokens.join());
    expect(new Set([replace, full, quest]).size).toBe(3);
  });
});
