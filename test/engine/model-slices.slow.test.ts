// Slices of every architecture, run one after the other with the attention between them, give the bits of the whole model.
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { kvTypeOf, layerInputs, packedType } from '../../src/engine/forms.ts';
import { freeModel, type LoadedModel, loadModel } from '../../src/engine/load-model.ts';
import { Packer, vectorValues } from '../../src/engine/pack.ts';
import { groupedStep, plainPages } from '../../src/engine/plain-step.ts';
import { type Compiled, compile } from '../../src/graph/compile.ts';
import { fuse } from '../../src/graph/fuse.ts';
import type { AttentionNode, Graph } from '../../src/graph/graph.ts';
import type { BufferId, InputForm } from '../../src/graph/program.ts';
import { slice } from '../../src/graph/slice.ts';
import type { ProgramHandle } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { buildGraph } from '../../src/models/registry.ts';
import type { Step } from '../../src/util/step.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { expectTensor, type ModelFiles } from '../../src/weights/types.ts';
import { familySpecs, ModelFolder, oddSpec } from './models.ts';
import { bitRows, blocksFor, chunksOf, someTokens } from './play.ts';

const folder = new ModelFolder();
afterAll(() => folder.remove());

const tiny = join(import.meta.dirname, '../../models/kvasir-tiny');
const promptTokens = 75;
const limits = { tokensMax: 128, logitRowsMax: 128 };
const neverAborted = new Int32Array(1);

/** A compiled graph with its weights on the backend. */
class BoundGraph {
  readonly compiled: Compiled;
  readonly #backend: ReferenceBackend;
  readonly #program: ProgramHandle;

  constructor(backend: ReferenceBackend, files: ModelFiles, graph: Graph, { weights, inputs, context }: LoadedModel) {
    this.#backend = backend;
    const typeOf = (name: string) => {
      const info = files.tensor(name);
      return info === undefined ? 'f32' : packedType(info, weights, graph.vocabularyNames.has(name));
    };
    this.compiled = compile(fuse(graph), {
      inputForm: (names) => layerInputs(inputs, names.map(typeOf)),
      kvType: kvTypeOf({ inputs }),
    });
    const packer = new Packer(files, backend);
    this.#program = backend.createProgram(this.compiled.program, {
      linears: this.compiled.linears.map((source) =>
        packer.linear(
          source,
          source.segments.map(({ name, rows }) => {
            const info = expectTensor(files, name, [rows, source.columns]);
            return { info, type: typeOf(name) };
          }),
        ),
      ),
      vectors: this.compiled.vectors.map((source) => backend.createVector(vectorValues(files, source, context))),
      ...limits,
      contextMax: context,
    });
  }

  write(buffer: BufferId, rows: number, values: Float32Array): void {
    this.#backend.writeBuffer(this.#program, buffer, rows, values);
  }

  run(pool: number, step: Step): void {
    expect(this.#backend.run(this.#program, pool, step, neverAborted).kind).toBe('done');
  }

  read(buffer: BufferId, rows: number): Float32Array {
    return this.#backend.readBuffer(this.#program, buffer, rows);
  }

  /** The buffer that the only op of this kind sends from or waits in. */
  bufferOf(kind: 'sendQ' | 'sendKV' | 'waitPartial'): BufferId {
    const found = this.compiled.program.ops.filter((op) => op.kind === kind);
    expect(found).toHaveLength(1);
    const [op] = found;
    return op !== undefined && 'out' in op ? op.out : -1;
  }
}

/** What an attention worker runs for a layer: attention over its pages, of q | k | v as model workers send them. */
function attentionWorkerGraph(graph: Graph, attention: AttentionNode): Graph {
  const { heads, kvHeads, headDim, out } = attention;
  const x = graph.tensors.length;
  const prepared: AttentionNode = { ...attention, x: [x], rope: undefined, qNorm: undefined, kNorm: undefined };
  const tensors = [...graph.tensors, { rows: 'token', columns: (heads + 2 * kvHeads) * headDim } as const];
  return { ...graph, tensors, nodes: [prepared], inputs: [x], outputs: [out], logits: undefined, hidden: undefined };
}

/** Rows of q, then of k | v, next to each other. */
function joined(q: Float32Array, kv: Float32Array, rows: number): Float32Array {
  const [left, right] = [q.length / rows, kv.length / rows];
  const values = new Float32Array(q.length + kv.length);
  for (let row = 0; row < rows; row++) {
    values.set(q.subarray(row * left, (row + 1) * left), row * (left + right));
    values.set(kv.subarray(row * right, (row + 1) * right), row * (left + right) + left);
  }
  return values;
}

/** Logits of the chunks by the whole model, and by its slices on a pool of their own. */
function expectSameBits(path: string, inputs: InputForm, sizes: readonly number[]): void {
  const backend = new ReferenceBackend();
  const files = openModel(path);
  const model = loadModel({
    model: files,
    backend,
    inputs,
    weights: inputs === 'int8' || inputs === 'i16' ? 'q8' : inputs,
  });
  const { kv, config, context } = model;
  const pages = 8 * kv.groups.reduce((sum, { layers }) => sum + layers, 0);
  const engine = new Engine({ model, backend, ...limits, kvBytes: pages * kv.pageBytes });
  const pool = backend.createKvPool({ pages, kvHeads: kv.kvHeads, headDim: kv.headDim, type: kv.type });

  const whole = buildGraph(config, context);
  const slices = slice(whole);
  const parts = slices.map(({ graph }) => new BoundGraph(backend, files, graph, model));
  const attentions = slices.flatMap(({ attention }) =>
    attention === undefined ? [] : [new BoundGraph(backend, files, attentionWorkerGraph(whole, attention), model)],
  );
  expect(parts).toHaveLength(config.layers + 1);

  const tables = plainPages(8, kv.groups);
  for (const { start, tokens } of chunksOf(someTokens(promptTokens, config.vocabSize, 4), 0, sizes)) {
    const step = groupedStep([{ tokens, start, blocks: blocksFor(promptTokens, 2), logits: 'all' }], tables);
    expect(engine.run(step, neverAborted).kind).toBe('done');

    const rows = tokens.length;
    let carried: readonly Float32Array[] = [];
    let attended: Float32Array | undefined;
    for (const [index, part] of parts.entries()) {
      const { inputs: given, outputs } = part.compiled;
      expect(given).toHaveLength(carried.length);
      for (const [place, buffer] of given.entries()) part.write(buffer, rows, carried[place]);
      if (attended !== undefined) part.write(part.bufferOf('waitPartial'), rows, attended);
      // A model worker has no pages.
      part.run(pool, { ...step, groups: [] });
      carried = outputs.map((buffer) => part.read(buffer, rows));
      const attention = attentions[index];
      if (attention === undefined) continue;
      const sent = joined(part.read(part.bufferOf('sendQ'), rows), part.read(part.bufferOf('sendKV'), rows), rows);
      attention.write(attention.compiled.inputs[0], rows, sent);
      attention.run(pool, step);
      attended = attention.read(attention.compiled.outputs[0], rows);
    }
    const last = parts.at(-1);
    const logits = last?.read(last.compiled.program.logits ?? -1, rows) ?? new Float32Array(0);
    expect(bitRows(logits, rows)).toEqual(bitRows(engine.readLogits(rows), rows));
  }
  engine.close();
  freeModel(model, backend);
  files.close();
  backend.close();
}

const llamas = (['llama', 'qwen2', 'qwen3'] as const).map((architecture) => ({ ...oddSpec, architecture, layers: 3 }));

test.each([...llamas, ...familySpecs])('$architecture: slices give the bits of the whole model', (spec) => {
  const path = folder.huggingFace(spec, 'f32');
  expectSameBits(path, 'bf16', [40, 1, 1, 33]);
});

// The reference backend takes a second for a token of this model.
test.each(['f32', 'int8'] as const)('kvasir-tiny, %s: slices give the bits of the whole model', (inputs) => {
  expectSameBits(tiny, inputs, [2, 1]);
});
