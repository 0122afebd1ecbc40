// A range of a model's layers over the engine's pages: takes activations from the range before, and returns those for
// the next.
import { type LayerSpan, type StageProgram, stageProgram } from '../graph/pipeline-stage.ts';
import type { Backend, KvPoolHandle, ProgramBindings, ProgramHandle, StepOutcome } from '../kernel/backend.ts';
import type { Step } from '../util/step.ts';
import type { LoadedModel } from './load-model.ts';

export class PipelineStage {
  /** Float32 values of a row between two ranges. */
  readonly columns: number;
  readonly #backend: Backend;
  readonly #pool: KvPoolHandle;
  readonly #stage: StageProgram;
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
    this.#stage = stageProgram(compiled.program, span);
    const { program, input, output } = this.#stage;
    const carried = input ?? output;
    this.columns = carried === undefined ? config.hiddenSize : program.buffers[carried].columns;
    this.#program = backend.createProgram(program, bindings);
  }

  /**
   * Like the engine's `run`, over these layers only. @param input (rows, columns): activations of the range before,
   * unless the step's `rowsIn` has them; undefined for the first range
   */
  run(step: Step, abort: Int32Array, input?: Float32Array): StepOutcome {
    const { input: buffer } = this.#stage;
    const given = Number(input !== undefined) + Number(step.rowsIn !== undefined);
    if (given !== Number(buffer !== undefined))
      throw new Error(
        `Cannot run layers: activations of the layers before are ${given === 0 ? 'missing' : 'too many'}`,
      );
    if (buffer !== undefined && input !== undefined)
      this.#backend.writeBuffer(this.#program, buffer, step.tokens.length, input);
    return this.#backend.run(this.#program, this.#pool, step, abort);
  }

  /** (rows, columns): a copy of the last step's activations for the next range. */
  readOutput(rows: number): Float32Array {
    const { output } = this.#stage;
    if (output === undefined) throw new Error('Cannot read rows for the next layers: these are the last');
    return this.#backend.readBuffer(this.#program, output, rows);
  }

  /** (rows, vocabulary): a copy of the logits of the last step, of the last range. */
  readLogits(rows: number): Float32Array {
    const { logits } = this.#stage.program;
    if (logits === undefined) throw new Error('Cannot read logits: these layers are not the last');
    return this.#backend.readBuffer(this.#program, logits, rows);
  }

  free(): void {
    this.#backend.freeProgram(this.#program);
  }
}
