// Numbers of instances that lend across processes: one record, written by compare-and-set; whoever comes again under its name has the number that it had.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Bus } from '../bus/bus.ts';
import { silentUs } from '../processes/peer-session.ts';
import { hasTraffic, lostListenMs, type Upholding, whenDoubtful } from '../processes/record-reconciler.ts';
import {
  encodePlaces,
  type LenderAnnouncement,
  type LenderPlace,
  readLenderAnnouncement,
  readPlaces,
} from '../wire/lending-messages.ts';

const key = 'lenders';
/** Numbers there are. */
const placesMax = 64;

export interface LenderNumber {
  readonly instance: InstanceIndex;
  /** Greater than that of whoever had the number before. */
  readonly incarnation: number;
}

/** Has it been lost by itself? Whoever is in it announces itself, and says its number again. */
export async function isRegistryLost(bus: Bus): Promise<boolean> {
  if (bus.durable || (await bus.records.read(key)) !== undefined) return false;
  return hasTraffic(bus, 'beat.lender', lostListenMs);
}

/** @param lost the record may have been: then numbers of those who are heard are taken, whatever it says @throws Error in one line when all numbers are taken */
export async function takeNumber(bus: Bus, name: string, incarnation: number, lost: boolean): Promise<LenderNumber> {
  let heard: Heard | undefined;
  for (;;) {
    const stored = await bus.records.read(key);
    const places = stored === undefined ? [] : readPlaces(stored.value).places;
    const known = heard !== undefined || !lost || places.some((place) => place.name === name);
    const instance = known ? freePlace(places, name, heard) : undefined;
    if (instance === undefined) {
      if (heard !== undefined) throw new Error(`Cannot lend: ${placesMax} instances of the cluster do already`);
      heard = await whoIsThere(bus);
      continue;
    }
    const own = Math.max(incarnation, (places[instance]?.incarnation ?? 0) + 1);
    if (await write(bus, places, instance, { name, incarnation: own }, stored?.revision))
      return { instance, incarnation: own };
  }
}

/** Says it again when the record was lost. @param onTaken somebody else has the number meanwhile */
export function keepNumber(
  bus: Bus,
  name: string,
  { instance, incarnation }: LenderNumber,
  onTaken: () => void,
  log: (message: string) => void = () => {},
): Upholding {
  const check = async (): Promise<void> => {
    for (;;) {
      const stored = await bus.records.read(key);
      const places = stored === undefined ? [] : readPlaces(stored.value).places;
      const place = places[instance] ?? unsaid;
      if (place.name === name && place.incarnation >= incarnation) return;
      if (place.incarnation !== unsaid.incarnation) {
        onTaken();
        return;
      }
      if (await write(bus, places, instance, { name, incarnation }, stored?.revision)) return;
    }
  };
  return whenDoubtful(bus, { what: 'the record of lenders', check, log });
}

/** Somebody else may have it. */
export async function releaseNumber(bus: Bus, name: string, { instance, incarnation }: LenderNumber): Promise<void> {
  for (;;) {
    const stored = await bus.records.read(key);
    const places = stored === undefined ? [] : readPlaces(stored.value).places;
    const own = places[instance];
    if (own?.name !== name || own.incarnation !== incarnation) return;
    if (await write(bus, places, instance, { name: '', incarnation }, stored?.revision)) return;
  }
}

/** Names of those that lend, by their numbers. */
type Heard = ReadonlyMap<InstanceIndex, string>;

/** Of whoever has it, the record says nothing since it was lost. */
const unsaid: LenderPlace = { name: '', incarnation: 0 };

/** The one that it had, one that was left, a new one, or one whose owner is not heard of. */
function freePlace(places: readonly LenderPlace[], name: string, heard: Heard | undefined): InstanceIndex | undefined {
  const own = places.findIndex((place) => place.name === name);
  if (own >= 0) return own;
  for (const [instance, other] of heard ?? []) if (other === name) return instance;
  const isFree = (place: LenderPlace, instance: InstanceIndex): boolean => place.name === '' && !heard?.has(instance);
  // Who has a number of which nothing is said may be heard.
  const left = places.findIndex(
    (place, i) => isFree(place, i) && (heard !== undefined || place.incarnation > unsaid.incarnation),
  );
  if (left >= 0) return left;
  for (let instance = places.length; instance < placesMax; instance++) if (!heard?.has(instance)) return instance;
  const there = heard && new Set(heard.values());
  const silent = places.findIndex((place) => there?.has(place.name) === false);
  return silent < 0 ? undefined : silent;
}

async function write(
  bus: Bus,
  places: readonly LenderPlace[],
  instance: InstanceIndex,
  place: LenderPlace,
  revision: number | undefined,
): Promise<boolean> {
  const changed = Array.from({ length: Math.max(places.length, instance + 1) }, (_, i) => places[i] ?? unsaid);
  changed[instance] = place;
  return (await bus.records.write(key, encodePlaces(changed), revision)) !== undefined;
}

function whoIsThere(bus: Bus): Promise<Heard> {
  const heard = new Map<InstanceIndex, string>();
  const stop = bus.subscribe('beat.lender', (bytes) => {
    const lender = announced(bytes);
    if (lender !== undefined) heard.set(lender.instance, lender.name);
  });
  return new Promise((resolve) => {
    setTimeout(() => {
      stop();
      resolve(heard);
    }, silentUs / 1000);
  });
}

/** Of another version it is none that could lend to us. */
function announced(bytes: Uint8Array): LenderAnnouncement | undefined {
  try {
    return readLenderAnnouncement(bytes);
  } catch {
    return undefined;
  }
}
