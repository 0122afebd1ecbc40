// What of an instance's effects is said to the conductor.
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';

/** Undefined: it is for others. */
export function conductorMessagesOf(
  instance: InstanceIndex,
  effect: InstanceEffect<undefined, LengthRequest>,
): ConductorEvent<LengthRequest> | undefined {
  switch (effect.kind) {
    case 'emit':
      return { kind: 'heard', instance, id: effect.id, event: effect.event };
    // Field by field: a spread takes as long as all that is done with the journal.
    case 'journal':
      return { kind: 'journal', instance, journal: effect.journal };
    case 'prefilled':
      return { kind: 'prefilled', instance, id: effect.id };
    case 'released':
    case 'outgrows':
    case 'migrated':
    case 'snapshot':
    case 'pinUpdated':
    case 'report':
      return { ...effect, instance };
    default:
      return undefined;
  }
}
