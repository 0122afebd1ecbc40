// No member of a group computes on rows that have not come to it: followed from when they come.

import type { LengthEffect, LengthEvent, LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';

/** Rows of a prompt's tokens, from one to before another. */
interface Rows {
  readonly from: number;
  readonly tokens: number;
}

export class RowChecks {
  /** (instances): by request, what has come to it. */
  readonly #came: readonly Map<string, Rows[]>[];

  constructor(instances: number) {
    this.#came = Array.from({ length: instances }, () => new Map());
  }

  /** An instance has heard this, and wants these carried out. */
  stepped(index: InstanceIndex, instance: LengthInstance, event: LengthEvent, effects: readonly LengthEffect[]): void {
    if (event.kind === 'activations') this.#comes(index, instance, event.id, event);
    for (const effect of effects)
      if (effect.kind === 'runStep' && (effect.range?.index ?? 0) > 0) this.#checkStep(index, instance);
  }

  /** What came for prompts of which nothing more is computed is of no use any more. */
  #comes(index: InstanceIndex, instance: LengthInstance, id: string, { from, tokens }: Rows): void {
    const came = this.#came[index];
    for (const other of came.keys()) if (!instance.hasStage(other)) came.delete(other);
    came.set(id, [...(came.get(id) ?? []), { from, tokens }]);
  }

  /** A step over a chunk begins. */
  #checkStep(index: InstanceIndex, { inFlight }: LengthInstance): void {
    const [{ id, sequence }] = inFlight;
    const { computed, planned } = sequence;
    const came = this.#came[index].get(id) ?? [];
    for (let at = computed; at < computed + planned; ) {
      const rows = came.find(({ from, tokens }) => from <= at && at < tokens);
      if (rows === undefined)
        throw new Error(
          `Rows broken: instance ${index} computes tokens ${computed} to ${computed + planned} of ${id}, and those of token ${at} have not come`,
        );
      at = rows.tokens;
    }
  }

  /** The instance starts anew. */
  gone(index: InstanceIndex): void {
    this.#came[index].clear();
  }
}
