// Copies of one linear layer in one program, timed on any backend.

import type { InputForm, Program } from '../graph/program.ts';
import type { Backend, KvPoolHandle, LinearHandle, WeightType } from '../kernel/backend.ts';
import type { Step } from '../util/step.ts';
import { quantise } from '../weights/quants/quantise.ts';
import { greedySampling } from './plain-step.ts';

export interface LayerShape {
  /** Output columns: rows of the weight. */
  readonly rows: number;
  /** Length of an input row. */
  readonly columns: number;
}

/** Weight rows that are generated; a layer repeats them. */
const distinctRows = 16;

/** Enough packed copies of a layer for at least `bytes`, so that none remains in a cache. */
export class LayerStack {
  readonly copies: number;
  /** Bytes of one packed copy. */
  readonly layerBytes: number;
  readonly #backend: Backend;
  readonly #shape: LayerShape;
  readonly #inputs: InputForm;
  readonly #linears: LinearHandle[] = [];
  readonly #pool: KvPoolHandle;

  constructor(backend: Backend, shape: LayerShape, type: WeightType, inputs: InputForm, bytes: number) {
    this.#backend = backend;
    this.#shape = shape;
    this.#inputs = inputs;
    this.#pool = backend.createKvPool({ pages: 1, kvHeads: 1, headDim: 32, type: 'bf16' });
    const stored = storedRows(type, shape.columns);
    do this.#linears.push(this.#packedLayer(type, stored));
    while (this.#linears.length * backend.linearBytes(this.#linears[0] as LinearHandle) < bytes);
    this.copies = this.#linears.length;
    this.layerBytes = backend.linearBytes(this.#linears[0] as LinearHandle);
  }

  /** Milliseconds of each of `repeats` runs of the first `copies` layers over `tokens` input rows; one more is not timed. */
  time(tokens: number, copies: number, repeats: number): number[] {
    const program = this.#program(copies);
    const handle = this.#backend.createProgram(program, {
      linears: this.#linears,
      vectors: [],
      tokensMax: tokens,
      logitRowsMax: 1,
      contextMax: tokens,
    });
    const values = Float32Array.from({ length: tokens * this.#shape.columns }, (_, i) => Math.sin(0.7 * i));
    this.#backend.writeBuffer(handle, 0, tokens, values);
    const step = rowsOnly(tokens);
    const abort = new Int32Array(1);
    const times = Array.from({ length: repeats + 1 }, () => {
      const startMs = performance.now();
      this.#backend.run(handle, this.#pool, step, abort);
      return performance.now() - startMs;
    });
    this.#backend.freeProgram(handle);
    return times.slice(1);
  }

  close(): void {
    for (const linear of this.#linears) this.#backend.freeLinear(linear);
    this.#backend.freeKvPool(this.#pool);
  }

  #packedLayer(type: WeightType, stored: Uint8Array): LinearHandle {
    const { rows, columns } = this.#shape;
    const linear = this.#backend.createLinear({ columns, segments: [{ type, rows }], inputs: this.#inputs });
    for (let row = 0; row < rows; row += distinctRows) {
      const count = Math.min(distinctRows, rows - row);
      this.#backend.packRows(linear, 0, row, count, stored.subarray(0, (stored.length / distinctRows) * count));
    }
    return linear;
  }

  #program(copies: number): Program {
    const { rows, columns } = this.#shape;
    const linears = Array.from({ length: copies }, (_, weight) => weight);
    return {
      buffers: [
        { rows: 'token', columns, kind: 'f32' },
        { rows: 'token', columns, kind: 'input', form: this.#inputs },
        { rows: 'token', columns: rows, kind: 'f32' },
      ],
      ops: [
        { kind: 'convert', x: 0, out: 1 },
        ...linears.map((weight) => ({ kind: 'linear', weight, bias: undefined, x: 1, out: 2 }) as const),
      ],
      logits: undefined,
      hidden: undefined,
      kvType: 'bf16',
      groups: [],
    };
  }
}

function storedRows(type: WeightType, columns: number): Uint8Array {
  const values = Float32Array.from({ length: distinctRows * columns }, (_, i) => 0.05 * Math.sin(1.3 * i + 0.1));
  return quantise(type, values);
}

/** A step of `tokens` rows without pages and logits. */
function rowsOnly(tokens: number): Step {
  return {
    tokens: new Int32Array(tokens),
    positions: Int32Array.from({ length: tokens }, (_, i) => i),
    rowStart: Int32Array.of(0, tokens),
    groups: [],
    remote: [],
    logitRows: new Int32Array(0),
    sampling: greedySampling(0),
  };
}
