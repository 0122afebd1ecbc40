// Messages between the threads of one process over its bus: their subjects and serialization.
import { deserialize, serialize } from 'node:v8';
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { Bus } from '../bus/bus.ts';
import type { MemoryBus } from '../bus/memory-bus.ts';
import type { LendingWire, ManagerOutput } from '../lending/lending-wire.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import type { FromInstance, ToInstance } from './thread-protocol.ts';

/** By the first word of the subject; comments list the words that follow it. An address is an instance's index, or `own` if its peers are in other processes. */
export interface ThreadSubjects {
  /** ADDRESS.INCARNATION: to an instance, from the owner of its thread. */
  readonly command: ToInstance;
  /** ADDRESS.INCARNATION: from the instance to that owner; `ready` is the first. */
  readonly output: FromInstance;
  /** ADDRESS.INCARNATION: the thread has ended; all of its messages come before. */
  readonly gone: undefined;
  /** TO.FROM: from an instance to another. */
  readonly peer: PeerWire;
  /** TO.FROM: about lent memory. */
  readonly lending: LendingWire;
  /** FROM: announces a remote attention server to all lenders, which reply with theirs. */
  readonly attentionServer: number;
  /** FROM: to the gManager. */
  readonly manager: Envelope;
  /** ADDRESS: messages of the gManager, and joins and losses of lenders. */
  readonly managerOutput: ManagerOutput;
}

type Words = readonly (string | number)[];

/** An instance's endpoint of the bus, and its address there. */
export interface ThreadEndpoint {
  readonly bus: Pick<MemoryBus, 'publish' | 'subscribe' | 'drain' | 'close'>;
  readonly address: string;
  readonly incarnation: number;
}

/** Address of an instance with peers in other processes. */
export const ownAddress = 'own';

export function publishTo<K extends keyof ThreadSubjects>(
  bus: Pick<Bus, 'publish'>,
  kind: K,
  to: Words,
  wire: ThreadSubjects[K],
): void {
  bus.publish([kind, ...to].join('.'), serialize(wire));
}

/** @param handler also receives the words of the subject after the kind. Returns a function that unsubscribes */
export function subscribeTo<K extends keyof ThreadSubjects>(
  bus: Pick<Bus, 'subscribe'>,
  kind: K,
  words: Words,
  handler: (wire: ThreadSubjects[K], words: readonly string[]) => void,
): () => void {
  return bus.subscribe([kind, ...words].join('.'), (payload, subject) =>
    // All threads of a process run the same release, so the type is trusted.
    handler(deserialize(payload) as ThreadSubjects[K], subject.split('.').slice(1)),
  );
}
