// Numbers of instances that lend across processes: one record, written by compare-and-set; whoever comes again under its name has the number that it had.
import type { InstanceIndex } from '../cluster/messages.ts';
import type { Bus } from './bus/bus.ts';
import { silentUs } from './station.ts';
import { encode } from './wire/codec.ts';
import { type LenderPlace, readPlaces } from './wire/lender-messages.ts';
import { readNamed } from './wire/messages.ts';

const key = 'lenders';
/** Numbers there are. */
const placesMax = 64;

export interface Place {
  readonly instance: InstanceIndex;
  /** Greater than that of whoever had the number before. */
  readonly life: number;
}

/** @throws Error in one line when all numbers are taken */
export async function takePlace(bus: Bus, name: string, life: number): Promise<Place> {
  let heard: ReadonlySet<string> | undefined;
  for (;;) {
    const stored = await bus.records.read(key);
    const places = stored === undefined ? [] : readPlaces(stored.value).places;
    const instance = freePlace(places, name, heard);
    if (instance === undefined) {
      if (heard !== undefined) throw new Error(`Cannot lend: ${placesMax} instances of the cluster do already`);
      heard = await whoIsThere(bus);
      continue;
    }
    const own = Math.max(life, (places[instance]?.life ?? 0) + 1);
    if (await write(bus, places, instance, { name, life: own }, stored?.revision)) return { instance, life: own };
  }
}

/** Somebody else may have it. */
export async function leavePlace(bus: Bus, name: string, { instance, life }: Place): Promise<void> {
  for (;;) {
    const stored = await bus.records.read(key);
    const places = stored === undefined ? [] : readPlaces(stored.value).places;
    const own = places[instance];
    if (own?.name !== name || own.life !== life) return;
    if (await write(bus, places, instance, { name: '', life }, stored?.revision)) return;
  }
}

/** The one that it had, one that was left, a new one, or one whose owner is not heard of. */
function freePlace(
  places: readonly LenderPlace[],
  name: string,
  heard: ReadonlySet<string> | undefined,
): InstanceIndex | undefined {
  const own = places.findIndex((place) => place.name === name);
  if (own >= 0) return own;
  const left = places.findIndex((place) => place.name === '');
  if (left >= 0) return left;
  if (places.length < placesMax) return places.length;
  const silent = places.findIndex((place) => heard?.has(place.name) === false);
  return silent < 0 ? undefined : silent;
}

async function write(
  bus: Bus,
  places: readonly LenderPlace[],
  instance: InstanceIndex,
  place: LenderPlace,
  revision: number | undefined,
): Promise<boolean> {
  const changed = [...places];
  changed[instance] = place;
  return (await bus.records.write(key, encode({ places: changed }), revision)) !== undefined;
}

function whoIsThere(bus: Bus): Promise<ReadonlySet<string>> {
  const names = new Set<string>();
  const stop = bus.subscribe('beat.lender', (bytes) => names.add(readNamed(bytes).name));
  return new Promise((resolve) => {
    setTimeout(() => {
      stop();
      resolve(names);
    }, silentUs / 1000);
  });
}
