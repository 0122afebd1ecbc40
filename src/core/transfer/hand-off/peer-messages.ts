// Who at an instance hears what the others say, and what comes from them.

import type { PipelinePrefill } from '../../pipeline/pipeline-prefill.ts';
import type { InstanceEvent, PeerMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../../protocol/ids.ts';
import type { MessageCounts } from '../../protocol/message-counts.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { PrefixMoves } from '../prefix-fetch/prefix-moves.ts';
import type { HandOffs } from './hand-offs.ts';

export interface Peers<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result> {
  readonly handOffs: HandOffs<Request, S>;
  readonly prefixes: PrefixMoves<Request, S>;
  readonly stages: PipelinePrefill<Request, S, Plan, Result>;
}

export type PeerEvent<Request> = Extract<
  InstanceEvent<Request, never>,
  {
    kind: 'peer' | 'landed' | 'arriving' | 'loaded' | 'prefixSent' | 'ssdWritten' | 'stores' | 'activations' | 'coming';
  }
>;

/** Returns what to log of an event that changed nothing. @param step in flight */
export function handlePeerEvent<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result>(
  peers: Peers<Request, S, Plan, Result>,
  event: PeerEvent<Request>,
  step: StepNumber | undefined,
): string | undefined {
  const { handOffs, prefixes, stages } = peers;
  if (event.kind === 'peer') {
    const why = hearMessage(peers, event.from, event.message, step);
    return why === undefined ? undefined : `${event.message.kind}: ${why}`;
  }
  if (event.kind === 'landed') {
    const { from, id, held } = event;
    return handOffs.arrivals.land(from, id, held) ? undefined : `landed: request ${id} is not expected`;
  }
  if (event.kind === 'activations' || event.kind === 'coming')
    return stages.feed(event) ? undefined : `${event.kind}: request ${event.id} waits for none`;
  if (event.kind === 'loaded' && stages.prefixes.came(event.id, event.source, event.to)) return undefined;
  const why = prefixes.tell(event);
  return why === undefined ? undefined : `${event.kind}: ${why}`;
}

/** What was not answered may be lost: it is said again. */
export function resendUnanswered(
  { handOffs, stages }: { readonly handOffs: { readonly departures: Asking }; readonly stages: Asking },
  mover: { askAgain(): void } | undefined,
  fates: MessageCounts | undefined,
): void {
  const [reserves, enlists] = [handOffs.departures.askAgain(), stages.askAgain()];
  fates?.met('lost', 'reserve', reserves);
  fates?.met('lost', 'enlist', enlists);
  mover?.askAgain();
}

interface Asking {
  /** Returns how much was said again. */
  askAgain(): number;
}

/** Of prefixes that come and go: while nobody waits, the batch has nothing to do with it. */
export function concernsPrefixes<Request>(event: InstanceEvent<Request, never>): boolean {
  const what = event.kind === 'peer' ? event.message.kind : event.kind;
  return (
    what === 'offer' ||
    what === 'fetch' ||
    what === 'missing' ||
    what === 'unwanted' ||
    what === 'prefixSent' ||
    what === 'arriving' ||
    what === 'loaded'
  );
}

function hearMessage<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result>(
  { handOffs, prefixes, stages }: Peers<Request, S, Plan, Result>,
  from: InstanceIndex,
  message: PeerMessage<Request>,
  step: StepNumber | undefined,
): string | undefined {
  switch (message.kind) {
    case 'missing':
      if (stages.prefixes.came(message.id, from, 0)) return undefined;
      return prefixes.hear(from, message);
    case 'fetch':
    case 'unwanted':
    case 'offer':
      return prefixes.hear(from, message);
    case 'enlist':
    case 'enlisted':
    case 'unable':
    case 'dismiss':
      return stages.hear(from, message);
    default:
      return handOffs.hear(from, message, step);
  }
}
