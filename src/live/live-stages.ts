// Runs an instance's stages of prompts that groups compute: rows of the layers before come in shared memory, and go on in it; between processes over pages.
import type { InstanceEffect } from '../cluster/effects.ts';
import type { Activations, InstanceEvent, InstanceIndex } from '../cluster/messages.ts';
import type { LinkSnapshot, RequestId } from '../cluster/ports.ts';
import { stageLayers } from '../cluster/stage-pages.ts';
import type { TokenInstance } from '../cluster/token-work.ts';
import type { Engine } from '../engine/engine.ts';
import type { LayerSlice } from '../engine/layer-slice.ts';
import { LinkCounts } from './link-counts.ts';
import type { LiveRows, RowsWire } from './live-rows.ts';

type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;
type LayerRange = NonNullable<RunStep['range']>;
type StepOutcome = ReturnType<LayerSlice['run']>;
type Pass = Extract<InstanceEffect, { kind: 'pass' }>;
export type StageEffect = Extract<InstanceEffect, { kind: 'pass' | 'copyPrefix' }>;

/** What a range of the layers made of a chunk. */
export interface ChunkWire {
  readonly kind: 'chunk';
  readonly id: RequestId;
  readonly chunk: Activations;
  /** (tokens - from, hidden) float32: the residual stream. */
  readonly rows: SharedArrayBuffer;
}

/** A chunk that is here: tokens from..to. */
interface Arrived {
  readonly from: number;
  readonly to: number;
  readonly rows: Float32Array;
}

export interface StagedEngine extends Pick<Engine, 'slice' | 'layers'> {
  /** Pages of the pool, one by one; done when it returns. */
  copyPages(from: Int32Array, to: Int32Array): void;
}

export class LiveStages {
  readonly #engine: StagedEngine;
  readonly #post: (to: InstanceIndex, wire: ChunkWire) => void;
  /** Programs of ranges of the layers, made when first wanted. */
  readonly #slices = new Map<string, LayerSlice>();
  readonly #arrived = new Map<RequestId, Arrived[]>();
  /** (places in a group): chunks that ran. */
  readonly #chunks: number[] = [];
  readonly #links = new LinkCounts({ wayTo: () => 'thread' });
  /** Undefined: the other members are threads of this process. */
  readonly #far: LiveRows | undefined;
  #ran: LayerSlice | undefined;

  constructor(engine: StagedEngine, post: (to: InstanceIndex, wire: ChunkWire) => void, far: LiveRows | undefined) {
    this.#engine = engine;
    this.#post = post;
    this.#far = far;
  }

  /** (places in a group): chunks that ran as the first of a group, the second... */
  get chunks(): readonly number[] {
    return this.#chunks;
  }

  /** To each member that rows have gone to. */
  get links(): readonly LinkSnapshot[] {
    return this.#far?.links ?? this.#links.all;
  }

  /** One chunk through the layers of the range. @param id whose it is */
  run(plan: RunStep['plan'], range: LayerRange, id: RequestId, abort: Int32Array): StepOutcome {
    const slice = this.#sliceOf(range);
    this.#ran = slice;
    const from = plan.positions[0];
    const input = range.index === 0 ? undefined : this.#rowsOf(id, from, from + plan.positions.length, slice.columns);
    const outcome = slice.run(plan, abort, input);
    while (this.#chunks.length <= range.index) this.#chunks.push(0);
    if (outcome.kind === 'done') this.#chunks[range.index]++;
    return outcome;
  }

  carryOut(effect: StageEffect): void {
    if (effect.kind === 'pass') this.#pass(effect);
    // What is cached of a prompt goes to the pages that are kept for its layers.
    else this.#engine.copyPages(effect.from, effect.to);
  }

  /** Of the chunk that ran last. */
  #pass({ id, to, chunk }: Pass): void {
    const { columns } = this.#slice;
    const rows = chunk.tokens - chunk.from;
    if (this.#far !== undefined) {
      this.#far.send(to, id, chunk, this.#slice.readOutput(rows));
      return;
    }
    const shared = new SharedArrayBuffer(rows * columns * Float32Array.BYTES_PER_ELEMENT);
    new Float32Array(shared).set(this.#slice.readOutput(rows));
    this.#links.add(to, '', id, shared.byteLength);
    // Memory that both threads share: it is there.
    this.#links.settle(id);
    this.#post(to, { kind: 'chunk', id, chunk, rows: shared });
  }

  get #slice(): LayerSlice {
    if (this.#ran === undefined) throw new Error('Cannot pass a chunk on: none has run');
    return this.#ran;
  }

  hear(from: InstanceIndex, wire: ChunkWire | RowsWire, machine: Pick<TokenInstance, 'hasStage'>): InstanceEvent[] {
    if (wire.kind === 'chunk') return [this.#take(wire.id, wire.chunk, new Float32Array(wire.rows))];
    this.#far?.hear(from, wire, (id) => machine.hasStage(id));
    return [];
  }

  /** What has come from other processes, and what cannot go there. */
  news(nowUs: number): readonly InstanceEvent[] {
    const far = this.#far;
    if (far === undefined) return [];
    return [...far.landed().map(({ id, chunk, rows }) => this.#take(id, chunk, rows)), ...far.broken(nowUs)];
  }

  /** When to ask for `news` again, if nothing comes before. */
  get nextUs(): number {
    return this.#far?.nextUs ?? Number.POSITIVE_INFINITY;
  }

  /** Another instance is gone. */
  lost(other: InstanceIndex): void {
    this.#far?.lost(other);
  }

  #take(id: RequestId, chunk: Activations, rows: Float32Array): InstanceEvent {
    const arrived = this.#arrived.get(id) ?? [];
    arrived.push({ from: chunk.from, to: chunk.tokens, rows });
    this.#arrived.set(id, arrived);
    return { kind: 'activations', id, ...chunk };
  }

  /** Lets go of what nobody will compute. */
  sweep(machine: Pick<TokenInstance, 'hasStage'>): void {
    for (const id of this.#arrived.keys()) if (!machine.hasStage(id)) this.#arrived.delete(id);
    this.#far?.sweep((id) => machine.hasStage(id));
  }

  /** (to - from, columns): what has come of these tokens; what came of those before them is not wanted any more. */
  #rowsOf(id: RequestId, from: number, to: number, columns: number): Float32Array {
    const arrived = (this.#arrived.get(id) ?? []).filter((chunk) => chunk.to > from);
    this.#arrived.set(id, arrived);
    const whole = arrived.find((chunk) => chunk.from === from && chunk.to === to);
    if (whole !== undefined) return whole.rows;
    const rows = new Float32Array((to - from) * columns);
    let missing = to - from;
    for (const chunk of arrived) {
      const [first, end] = [Math.max(from, chunk.from), Math.min(to, chunk.to)];
      if (first >= end) continue;
      rows.set(
        chunk.rows.subarray((first - chunk.from) * columns, (end - chunk.from) * columns),
        (first - from) * columns,
      );
      missing -= end - first;
    }
    if (missing > 0) throw new Error(`Cannot run layers of request ${id}: rows of ${missing} tokens are not here`);
    return rows;
  }

  #sliceOf(range: LayerRange): LayerSlice {
    const span = stageLayers(this.#engine.layers.length, range);
    const key = `${span.from} ${span.to}`;
    const known = this.#slices.get(key);
    if (known !== undefined) return known;
    const slice = this.#engine.slice(span);
    this.#slices.set(key, slice);
    return slice;
  }
}

export function isOfStage(wire: { readonly kind: string }): wire is ChunkWire | RowsWire {
  return wire.kind === 'chunk' || wire.kind === 'rows' || wire.kind === 'rowsLand' || wire.kind === 'rowsHere';
}
