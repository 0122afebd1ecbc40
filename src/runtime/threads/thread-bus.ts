// What threads of one process tell each other over its bus: by which subjects, and how messages become bytes.
import { deserialize, serialize } from 'node:v8';
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { Bus } from '../bus/bus.ts';
import type { MemoryBus } from '../bus/memory-bus.ts';
import type { LendingWire, ManagerOutput } from '../lending/lending-wire.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import type { FromInstance, ToInstance } from './thread-protocol.ts';

/** By the first word of the subject; the words that follow it are named. An address is the number of an instance, or `own` where the others are in other processes. */
export interface ThreadSubjects {
  /** ADDRESS.LIFE: to an instance, from whoever started its thread. */
  readonly command: ToInstance;
  /** ADDRESS.LIFE: what it says to that one. With `ready` it announces itself. */
  readonly output: FromInstance;
  /** ADDRESS.LIFE: its thread has ended; whatever it said comes before. */
  readonly gone: undefined;
  /** TO.FROM: from an instance to another one. */
  readonly peer: PeerWire;
  /** TO.FROM: about memory that instances lend to one another. */
  readonly lending: LendingWire;
  /** FROM: to all who lend, and each answers with its own: its guest room. */
  readonly attentionServer: number;
  /** FROM: to whoever is gManager. */
  readonly manager: Envelope;
  /** ADDRESS: a gManager's word, and who comes and goes of those who lend. */
  readonly managerOutput: ManagerOutput;
}

type Words = readonly (string | number)[];

/** An instance's end of the bus, and what it is called there. */
export interface ThreadEndpoint {
  readonly bus: Pick<MemoryBus, 'publish' | 'subscribe' | 'drain' | 'close'>;
  readonly address: string;
  readonly incarnation: number;
}

/** What an instance is called whose peers are in other processes: those have numbers of their own. */
export const ownAddress = 'own';

export function publishTo<K extends keyof ThreadSubjects>(
  bus: Pick<Bus, 'publish'>,
  kind: K,
  to: Words,
  wire: ThreadSubjects[K],
): void {
  bus.publish([kind, ...to].join('.'), serialize(wire));
}

/** @param hear with the words that stand in the subject after its kind. Returns how to stop */
export function subscribeTo<K extends keyof ThreadSubjects>(
  bus: Pick<Bus, 'subscribe'>,
  kind: K,
  words: Words,
  hear: (wire: ThreadSubjects[K], words: readonly string[]) => void,
): () => void {
  return bus.subscribe([kind, ...words].join('.'), (payload, subject) =>
    // Whoever is on the bus of a process is of this release: what it says is what its type says.
    hear(deserialize(payload) as ThreadSubjects[K], subject.split('.').slice(1)),
  );
}
