// How often messages about requests met which fate and were dealt with: what a run with faults has shown of the handlers.

import type { InstanceEvent, PeerMessage } from './events.ts';
import type { RequestId } from './ids.ts';
import type { LendingMessageKind, MessageFate } from './lending-messages.ts';

/** `ended`: the last word about a request. */
export type FatedMessage =
  | PeerMessage['kind']
  | (
      | 'submit'
      | 'cancel'
      | 'landed'
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

type PeerWord =
  | { readonly kind: 'peer'; readonly message: { readonly id: RequestId; readonly kind: PeerMessage['kind'] } }
  | { readonly kind: 'landed' | 'activations'; readonly id: RequestId }
  | { readonly kind: Exclude<InstanceEvent['kind'], 'peer' | 'landed' | 'activations'> };

export class MessageCounts {
  /** By `fate message`. */
  readonly counts = new Map<string, number>();

  met(fate: MessageFate, message: FatedMessage, times = 1): void {
    if (times === 0) return;
    const key = `${fate} ${message}`;
    this.counts.set(key, (this.counts.get(key) ?? 0) + times);
  }

  /** An instance has heard what is of no use to it. */
  heard(event: PeerWord, instance: { readonly fateOf: (id: RequestId) => MessageFate }): void {
    if (event.kind === 'landed' || event.kind === 'activations') this.met(instance.fateOf(event.id), event.kind);
    else if (event.kind === 'peer') this.met(instance.fateOf(event.message.id), event.message.kind);
  }
}
