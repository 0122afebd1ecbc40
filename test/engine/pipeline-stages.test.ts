// Layers run range by range, each a program of its own: the bits and the pages of the whole model, wherever it is cut and in whatever chunks.
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import { groupedStep, plainPages } from '../../src/engine/plain-step.ts';
import { stageProgram } from '../../src/graph/pipeline-stage.ts';
import type { InputForm } from '../../src/graph/program.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { backends } from './backends.ts';
import { familySpecs, ModelFolder, oddSpec } from './models.ts';
import { blocksFor, chunksOf, someTokens } from './play.ts';

const folder = new ModelFolder();
afterAll(() => folder.remove());

const promptTokens = 75;
const neverAborted = new Int32Array(1);
const tiny = join(import.meta.dirname, '../../models/kvasir-tiny');

class Stages {
  readonly engine: Engine;
  readonly #prompt: readonly number[];
  readonly #close: () => void;

  constructor(path: string, inputs: InputForm, backend: ReturnType<(typeof backends)[number]['create']>) {
    const weights = inputs === 'int8' || inputs === 'i16' ? 'q8' : inputs;
    const model = loadModel({ model: path, backend, weights, inputs });
    const { pageBytes, groups } = model.kv;
    const kvBytes = 8 * pageBytes * groups.reduce((sum, { layers }) => sum + layers, 0);
    this.engine = new Engine({ model, backend, tokensMax: 128, logitRowsMax: 4, kvBytes });
    this.#prompt = someTokens(promptTokens, model.config.vocabSize, 4);
    this.#close = () => {
      this.engine.close();
      freeModel(model, backend);
      backend.close();
    };
  }

  get layers(): number {
    return this.engine.layers.length;
  }

  /** A digest of the bits of the last token's logits, and of all pages. @param cuts the layers that ranges begin with, but the first */
  run(cuts: readonly number[], sizes: readonly number[]): string {
    const tables = plainPages(8, this.engine.model.kv.groups);
    for (const { pageTable } of tables) {
      // Pages of other layers do not help.
      for (const page of pageTable) this.engine.writePage(page, this.engine.readPage(page).fill(3));
    }
    const spans = [0, ...cuts].map((from, i) => ({ from, to: cuts[i] ?? this.layers }));
    const slices = spans.map((span) => this.engine.pipelineStage(span));
    const blocks = blocksFor(promptTokens, 2);
    for (const { start, tokens } of chunksOf(this.#prompt, 0, sizes)) {
      const isLast = start + tokens.length === promptTokens;
      let rows: Float32Array | undefined;
      for (const [index, slice] of slices.entries()) {
        const logits = isLast && index === slices.length - 1 ? 'last' : 'none';
        slice.run(groupedStep([{ tokens, start, blocks, logits }], tables), neverAborted, rows);
        rows = index === slices.length - 1 ? undefined : slice.readOutput(tokens.length);
      }
    }
    const hash = createHash('sha256').update(slices.at(-1)?.readLogits(1) ?? '');
    for (const slice of slices) slice.free();
    for (const { pageTable } of tables) for (const page of pageTable) hash.update(this.engine.readPage(page));
    return hash.digest('hex');
  }

  close(): void {
    this.#close();
  }
}

function withStages(
  path: string,
  inputs: InputForm,
  backend: ReturnType<(typeof backends)[number]['create']>,
  use: (stages: Stages) => void,
): void {
  const stages = new Stages(path, inputs, backend);
  try {
    use(stages);
  } finally {
    stages.close();
  }
}

const best = backends[backends.length - 1];
const different = backends.filter(({ name }) => name === 'reference' || name === 'portable' || name === best.name);

const forms: readonly InputForm[] = ['f32', 'bf16', 'int8'];

function expectSameAtEveryCut(stages: Stages): void {
  const whole = stages.run([], [128]);
  const layers = Array.from({ length: stages.layers - 1 }, (_, i) => i + 1);
  for (const cut of layers) expect(stages.run([cut], [32]), `cut before layer ${cut}`).toEqual(whole);
  expect(stages.run(layers, [50])).toEqual(whole);
}

test.each(forms)('kvasir-tiny, %s: cut before every layer, and before all', (inputs) => {
  withStages(tiny, inputs, best.create(2), expectSameAtEveryCut);
});

test.each(different.flatMap(({ name, create }) => forms.map((inputs) => ({ name, inputs, create }))))(
  'a small model on $name, $inputs: cut before every layer',
  ({ inputs, create }) => {
    withStages(folder.huggingFace(oddSpec, 'f32'), inputs, create(2), expectSameAtEveryCut);
  },
);

test.each(familySpecs)('$architecture: any cuts, in any chunks', (spec) => {
  withStages(folder.huggingFace(spec, 'f32'), 'bf16', best.create(2), (stages) => {
    const whole = stages.run([], [128]);
    const cuts = fc.subarray(Array.from({ length: stages.layers - 1 }, (_, i) => i + 1));
    const sizes = fc.array(fc.integer({ min: 1, max: 75 }), { minLength: 1, maxLength: 3 });
    fc.assert(
      fc.property(cuts, sizes, (at, chunks) => {
        expect(stages.run(at, chunks)).toEqual(whole);
      }),
      { numRuns: 3 },
    );
  });
});

test('one row of the residual stream goes from layers to layers', () => {
  const path = folder.huggingFace(oddSpec, 'f32');
  withStages(path, 'f32', new ReferenceBackend(), ({ engine }) => {
    const { program } = engine.model.compiled;
    const { input, output, program: last } = stageProgram(program, { from: 1, to: engine.layers.length });
    expect(output).toBeUndefined();
    expect(last.buffers[input ?? -1]).toEqual({ rows: 'token', kind: 'f32', columns: oddSpec.hiddenSize });
    expect(() => stageProgram(program, { from: 1, to: 9 })).toThrow('Cannot make a pipeline stage');
    expect(() => engine.pipelineStage({ from: 1, to: 2 }).run(groupedStep([], []), neverAborted)).toThrow(
      'activations of the layers',
    );
  });
});
