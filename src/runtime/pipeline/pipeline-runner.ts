// Runs an instance's share of pipeline prefill: programs over ranges of the layers, with activations received and sent over pages.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import { layersBetween } from '../../core/protocol/step-shape.ts';
import type { Engine } from '../../engine/engine.ts';
import type { PipelineStage } from '../../engine/pipeline-stage.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { ActivationWire } from './activation-memory.ts';
import type { ActivationTransfer } from './activation-transfer.ts';

type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;
type LayerRange = NonNullable<RunStep['range']>;
type StepOutcome = ReturnType<PipelineStage['run']>;
export type PipelineEffect = Extract<InstanceEffect, { kind: 'sendActivations' | 'copyPrefix' | 'expectActivations' }>;

export interface PipelineEngine extends Pick<Engine, 'pipelineStage' | 'layers'> {
  /** Copies pages of the pool one by one; done when it returns. */
  copyPages(from: Int32Array, to: Int32Array): void;
}

export class PipelineRunner {
  readonly #engine: PipelineEngine;
  readonly #create: () => ActivationTransfer;
  /** Created at the first use. */
  #transfer: ActivationTransfer | undefined;
  /** Programs of layer ranges, created at the first use. */
  readonly #stages = new Map<string, PipelineStage>();
  /** (places in a group): number of chunks run. */
  readonly #chunks: number[] = [];

  constructor(engine: PipelineEngine, createTransfer: () => ActivationTransfer) {
    this.#engine = engine;
    this.#create = createTransfer;
  }

  get #activations(): ActivationTransfer {
    this.#transfer ??= this.#create();
    return this.#transfer;
  }

  /** (places in a group): chunks that this instance ran as the first member, the second, and so on. */
  get chunks(): readonly number[] {
    return this.#chunks;
  }

  /** Backpressure: true while downstream members cannot accept activations of the request. */
  isBackpressured(id: RequestId): boolean {
    return this.#transfer?.isBackpressured(id) === true;
  }

  /** Links to all members that activations were sent to. */
  get links(): readonly LinkSnapshot[] {
    return this.#transfer?.links ?? [];
  }

  /** How often the bytes of links have changed: some do without an event. */
  get linkChanges(): number {
    return this.#transfer?.linkChanges ?? 0;
  }

  /** Runs one chunk through the layers of the range: waits for its input activations, and sends its output with the last operation. @param id the request */
  run({ plan, range, activationsOut }: RunStep, id: RequestId, abort: Int32Array): StepOutcome {
    if (range === undefined) throw new Error('Cannot run a pipeline step: it has no layer range');
    const stage = this.#stageOf(range);
    const { length: rows, 0: from } = plan.positions;
    const chunk = { from, tokens: from + rows };
    const rowsIn = range.index === 0 ? undefined : this.#activations.rowsOf(id, chunk);
    const rowsOut = activationsOut && this.#activations.begin(activationsOut.to, id, activationsOut.chunk);
    let ran = false;
    try {
      const outcome = stage.run({ ...plan, rowsIn, rowsOut }, abort);
      ran = outcome.kind === 'done' && outcome.result.failedSequences.length === 0;
      return outcome;
    } finally {
      if (activationsOut !== undefined)
        this.#activations.ended(
          activationsOut.to,
          id,
          activationsOut.chunk,
          ran ? () => stage.readOutput(rows) : undefined,
        );
      if (ran && rowsIn !== undefined) this.#activations.used(id, chunk);
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
        this.#activations.expect(effect.id, effect.from);
        break;
      case 'copyPrefix':
        // Cached blocks of the prompt go to the pages reserved for its layers.
        this.#engine.copyPages(effect.from, effect.to);
        break;
      case 'sendActivations':
        // The activations were sent with their step.
        break;
      default:
        assertNever(effect);
    }
  }

  onMessage(from: InstanceIndex, wire: ActivationWire): void {
    this.#activations.onMessage(from, wire);
  }

  /** Events of received activations and unreachable members. */
  poll(nowUs: number): readonly InstanceEvent[] {
    return this.#transfer?.poll(nowUs) ?? [];
  }

  /** Time of the next `poll`, if nothing happens before. */
  get nextUs(): number {
    return this.#transfer?.nextUs ?? Number.POSITIVE_INFINITY;
  }

  /** Another instance is lost. */
  onPeerLost(other: InstanceIndex): void {
    this.#transfer?.onPeerLost(other);
  }

  /** Another instance is lost, and its index is never used again. */
  onPeerEnded(other: InstanceIndex): void {
    this.#transfer?.onPeerEnded(other);
  }

  /** Releases the chunks of requests that are no longer computed here. */
  sweep(machine: Pick<TokenInstance, 'components'>): void {
    this.#transfer?.sweep((id) => machine.components.pipeline.has(id));
  }

  #stageOf(range: LayerRange): PipelineStage {
    const span = layersBetween(this.#engine.layers.length, range);
    const key = `${span.from} ${span.to}`;
    const known = this.#stages.get(key);
    if (known !== undefined) return known;
    const stage = this.#engine.pipelineStage(span);
    this.#stages.set(key, stage);
    return stage;
  }
}

export function isActivationWire(wire: { readonly kind: string }): wire is ActivationWire {
  return wire.kind === 'activations' || wire.kind === 'activationsBuffer' || wire.kind === 'activationsCancelled';
}
