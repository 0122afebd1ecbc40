// Runs an instance's stages of prompts that groups compute: each a program over a range of the layers, whose rows come and go over pages.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import { stageLayers } from '../../core/kvcache/stage-pages.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { Engine } from '../../engine/engine.ts';
import type { LayerSlice } from '../../engine/layer-slice.ts';
import type { ActivationWire } from './activation-memory.ts';
import type { ActivationTransfer } from './activation-transfer.ts';

type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;
type LayerRange = NonNullable<RunStep['range']>;
type StepOutcome = ReturnType<LayerSlice['run']>;
export type PipelineEffect = Extract<InstanceEffect, { kind: 'sendActivations' | 'copyPrefix' | 'expectActivations' }>;

export interface PipelineEngine extends Pick<Engine, 'slice' | 'layers'> {
  /** Pages of the pool, one by one; done when it returns. */
  copyPages(from: Int32Array, to: Int32Array): void;
}

export class PipelineRunner {
  readonly #engine: PipelineEngine;
  readonly #create: () => ActivationTransfer;
  /** Made when a group first computes something here. */
  #rows: ActivationTransfer | undefined;
  /** Programs of ranges of the layers, made when first wanted. */
  readonly #slices = new Map<string, LayerSlice>();
  /** (places in a group): chunks that ran. */
  readonly #chunks: number[] = [];

  constructor(engine: PipelineEngine, rows: () => ActivationTransfer) {
    this.#engine = engine;
    this.#create = rows;
  }

  get #moved(): ActivationTransfer {
    this.#rows ??= this.#create();
    return this.#rows;
  }

  /** (places in a group): chunks that ran as the first of a group, the second... */
  get chunks(): readonly number[] {
    return this.#chunks;
  }

  /** Do enough rows wait here for room, and is nothing of the request begun? */
  isBlocked(id: RequestId): boolean {
    return this.#rows?.isBlocked(id) === true;
  }

  /** To each member that rows have gone to. */
  get links(): readonly LinkSnapshot[] {
    return this.#rows?.links ?? [];
  }

  /** One chunk through the layers of the range: it waits for what it begins with, and what it makes leaves with its last op. @param id whose it is */
  run({ plan, range, passes }: RunStep, id: RequestId, abort: Int32Array): StepOutcome {
    if (range === undefined) throw new Error('Cannot run layers: the step runs all');
    const slice = this.#sliceOf(range);
    const { length: rows, 0: from } = plan.positions;
    const chunk = { from, tokens: from + rows };
    const rowsIn = range.index === 0 ? undefined : this.#moved.rowsOf(id, chunk);
    const rowsOut = passes && this.#moved.begin(passes.to, id, passes.chunk);
    let ran = false;
    try {
      const outcome = slice.run({ ...plan, rowsIn, rowsOut }, abort);
      ran = outcome.kind === 'done' && outcome.result.unanswered.length === 0;
      return outcome;
    } finally {
      if (passes !== undefined)
        this.#moved.ended(passes.to, id, passes.chunk, ran ? () => slice.readOutput(rows) : undefined);
      if (ran && rowsIn !== undefined) this.#moved.used(id, chunk);
      if (ran) this.#count(range.index);
    }
  }

  #count(index: number): void {
    while (this.#chunks.length <= index) this.#chunks.push(0);
    this.#chunks[index]++;
  }

  carryOut(effect: PipelineEffect): void {
    switch (effect.kind) {
      case 'expectActivations':
        this.#moved.expect(effect.id, effect.from);
        break;
      case 'copyPrefix':
        // What is cached of a prompt goes to the pages that are kept for its layers.
        this.#engine.copyPages(effect.from, effect.to);
        break;
      case 'sendActivations':
        // It has left with its step.
        break;
    }
  }

  onMessage(from: InstanceIndex, wire: ActivationWire): InstanceEvent[] {
    this.#moved.onMessage(from, wire);
    return [];
  }

  /** What has come from other members, and what cannot go there. */
  poll(nowUs: number): readonly InstanceEvent[] {
    return this.#rows?.poll(nowUs) ?? [];
  }

  /** When to ask for `news` again, if nothing comes before. */
  get nextUs(): number {
    return this.#rows?.nextUs ?? Number.POSITIVE_INFINITY;
  }

  /** Another instance is gone. */
  onPeerLost(other: InstanceIndex): void {
    this.#rows?.onPeerLost(other);
  }

  /** Lets go of what nobody will compute. */
  sweep(machine: Pick<TokenInstance, 'components'>): void {
    this.#rows?.sweep((id) => machine.components.pipeline.has(id));
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

export function isActivationWire(wire: { readonly kind: string }): wire is ActivationWire {
  return wire.kind === 'activations' || wire.kind === 'activationsBuffer' || wire.kind === 'activationsCancelled';
}
