// No member of a pipeline group computes on activations that it has not received.

import type { LengthEffect, LengthEvent, LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';

/** Rows of a prompt's tokens, from one to before another. */
interface Rows {
  readonly from: number;
  readonly tokens: number;
}

export class ActivationChecks {
  /** (instances): by request, the received rows. */
  readonly #received: readonly Map<string, Rows[]>[];

  constructor(instances: number) {
    this.#received = Array.from({ length: instances }, () => new Map());
  }

  /** An instance has handled the event with these effects. */
  stepped(index: InstanceIndex, instance: LengthInstance, event: LengthEvent, effects: readonly LengthEffect[]): void {
    if (event.kind === 'activations') this.#receive(index, instance, event.id, event);
    for (const effect of effects)
      if (effect.kind === 'runStep' && (effect.range?.index ?? 0) > 0) this.#checkStep(index, instance);
  }

  /** Drops the rows of prompts without a stage at the instance. */
  #receive(index: InstanceIndex, instance: LengthInstance, id: string, { from, tokens }: Rows): void {
    const received = this.#received[index];
    for (const other of received.keys()) if (!instance.hasStage(other)) received.delete(other);
    received.set(id, [...(received.get(id) ?? []), { from, tokens }]);
  }

  /** A step over a chunk begins. */
  #checkStep(index: InstanceIndex, { inFlight }: LengthInstance): void {
    const [{ id, sequence }] = inFlight;
    const { computed, planned } = sequence;
    const received = this.#received[index].get(id) ?? [];
    for (let at = computed; at < computed + planned; ) {
      const rows = received.find(({ from, tokens }) => from <= at && at < tokens);
      if (rows === undefined)
        throw new Error(
          `Rows broken: instance ${index} computes tokens ${computed} to ${computed + planned} of ${id}, and has not received those of token ${at}`,
        );
      at = rows.tokens;
    }
  }

  /** The instance has failed. */
  reset(index: InstanceIndex): void {
    this.#received[index].clear();
  }
}
