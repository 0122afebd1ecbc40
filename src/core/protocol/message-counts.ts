// Counts anomalies of messages: which lost, duplicate, late and orphaned messages the handlers met in a run with
// faults.

import type { InstanceEvent, PeerMessage } from './events.ts';
import type { RequestId } from './ids.ts';
import type { LendingMessageKind, MessageAnomaly } from './lending-messages.ts';

/** `ended`: the last event of a request. */
export type CountedMessage =
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
      | 'attentionWorkerLost'
      | 'attentionWorkerReady'
    )
  | ('kvEvents' | 'snapshot' | 'report')
  | LendingMessageKind;

export class MessageCounts {
  /** By `anomaly message`. */
  readonly counts = new Map<string, number>();

  count(anomaly: MessageAnomaly, message: CountedMessage, times = 1): void {
    if (times === 0) return;
    const key = `${anomaly} ${message}`;
    this.counts.set(key, (this.counts.get(key) ?? 0) + times);
  }

  /** An instance ignored the event. */
  ignored(
    event: InstanceEvent<{ readonly id: RequestId }, unknown>,
    requests: { anomalyOf(id: RequestId): MessageAnomaly },
  ): void {
    switch (event.kind) {
      case 'submit':
        this.count(requests.anomalyOf(event.request.id), event.kind);
        break;
      case 'peer':
        this.count(requests.anomalyOf(event.message.id), event.message.kind);
        break;
      case 'cancel':
      case 'promptReceived':
      case 'activations':
        this.count(requests.anomalyOf(event.id), event.kind);
        break;
      default:
      // Other events are not counted.
    }
  }
}
