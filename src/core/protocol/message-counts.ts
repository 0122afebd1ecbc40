// Counts the fates of messages about requests: which anomalies a run with faults has shown to the handlers.

import type { InstanceEvent, PeerMessage } from './events.ts';
import type { RequestId } from './ids.ts';
import type { LendingMessageKind, MessageFate } from './lending-messages.ts';

/** `ended`: the last event of a request. */
export type FatedMessage =
  | PeerMessage['kind']
  | (
      | 'submit'
      | 'cancel'
      | 'promptReceived'
      | 'activations'
      | 'started'
      | 'tokens'
      | 'ended'
      | 'prefilled'
      | 'released'
      | 'migrated'
    )
  | ('journal' | 'snapshot' | 'report')
  | LendingMessageKind;

export class MessageCounts {
  /** By `fate message`. */
  readonly counts = new Map<string, number>();

  met(fate: MessageFate, message: FatedMessage, times = 1): void {
    if (times === 0) return;
    const key = `${fate} ${message}`;
    this.counts.set(key, (this.counts.get(key) ?? 0) + times);
  }

  /** An instance ignored the event. */
  ignored(
    event: InstanceEvent<{ readonly id: RequestId }, unknown>,
    requests: { fateOf(id: RequestId): MessageFate },
  ): void {
    switch (event.kind) {
      case 'submit':
        this.met(requests.fateOf(event.request.id), event.kind);
        break;
      case 'peer':
        this.met(requests.fateOf(event.message.id), event.message.kind);
        break;
      case 'cancel':
      case 'promptReceived':
      case 'activations':
        this.met(requests.fateOf(event.id), event.kind);
        break;
      default:
      // The fates of other events are not counted.
    }
  }
}
