// A range of a model's layers over the engine's pages: rows come from the range before, and go on to the next.
import { type LayerSpan, type ProgramSlice, sliceProgram } from '../graph/slice.ts';
import type { Backend, KvPoolHandle, ProgramBindings, ProgramHandle, StepOutcome } from '../kernel/backend.ts';
import type { Step } from '../util/step.ts';
import type { LoadedModel } from './load-model.ts';

export class LayerSlice {
  /** Float32 values of a row that goes from one range to the next. */
  readonly columns: number;
  readonly #backend: Backend;
  readonly #pool: KvPoolHandle;
  readonly #slice: ProgramSlice;
  readonly #program: ProgramHandle;

  constructor(
    backend: Backend,
    pool: KvPoolHandle,
    { compiled, config }: LoadedModel,
    span: LayerSpan,
    bindings: ProgramBindings,
  ) {
    this.#backend = backend;
    this.#pool = pool;
    this.#slice = sliceProgram(compiled.program, span);
    const { program, input, output } = this.#slice;
    const carried = input ?? output;
    this.columns = carried === undefined ? config.hiddenSize : program.buffers[carried].columns;
    this.#program = backend.createProgram(program, bindings);
  }

  /** As the engine's `run`, over these layers alone. @param input (rows, columns) what the range before left of the step's rows, unless the step's `rowsIn` has it; of the first range nothing */
  run(step: Step, abort: Int32Array, input?: Float32Array): StepOutcome {
    const { input: buffer } = this.#slice;
    const given = Number(input !== undefined) + Number(step.rowsIn !== undefined);
    if (given !== Number(buffer !== undefined))
      throw new Error(`Cannot run layers: rows of the layers before are ${given === 0 ? 'missing' : 'too many'}`);
    if (buffer !== undefined && input !== undefined)
      this.#backend.writeBuffer(this.#program, buffer, step.tokens.length, input);
    return this.#backend.run(this.#program, this.#pool, step, abort);
  }

  /** (rows, columns) what the last step left for the next range, wherever else it lies: a copy. */
  readOutput(rows: number): Float32Array {
    const { output } = this.#slice;
    if (output === undefined) throw new Error('Cannot read rows for the next layers: these are the last');
    return this.#backend.readBuffer(this.#program, output, rows);
  }

  /** (rows, vocabulary) logits of the last step of the last range: a copy. */
  readLogits(rows: number): Float32Array {
    const { logits } = this.#slice.program;
    if (logits === undefined) throw new Error('Cannot read logits: these layers are not the last');
    return this.#backend.readBuffer(this.#program, logits, rows);
  }

  free(): void {
    this.#backend.freeProgram(this.#program);
  }
}
