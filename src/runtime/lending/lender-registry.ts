// Lender numbers across processes, in one record that is written by compare-and-set. An instance keeps its number across
// restarts.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Bus } from '../bus/bus.ts';
import { silentUs } from '../processes/peer-session.ts';
import { hasTraffic, lostListenMs, RecordReconciler } from '../processes/record-reconciler.ts';
import {
  encodeLenderRecord,
  type LenderAnnouncement,
  type LenderEntry,
  readLenderAnnouncement,
  readLenderRecord,
} from '../wire/lending-messages.ts';

const key = 'lenders';
/** Largest number of lenders. */
const lendersMax = 64;

export interface LenderNumber {
  readonly instance: InstanceIndex;
  /** Greater than that of the number's previous owner. */
  readonly incarnation: number;
}

/** A number that was just taken. */
export interface TakenNumber extends LenderNumber {
  /** The cluster had no record of lenders, and has lost none. */
  readonly isFirst: boolean;
}

/** True if the record is lost while lenders run. They announce themselves, and restore their entries. */
export async function isRegistryLost(bus: Bus): Promise<boolean> {
  if (bus.durable || (await bus.records.read(key)) !== undefined) return false;
  return hasTraffic(bus, 'beat.lender', lostListenMs);
}

/**
 * Takes a number.
 * @param lost the record may be incomplete: announced numbers then count as taken too
 * @throws Error in one line if all are taken
 */
export async function takeNumber(bus: Bus, name: string, incarnation: number, lost: boolean): Promise<TakenNumber> {
  let announced: Announced | undefined;
  for (;;) {
    const stored = await bus.records.read(key);
    const entries = stored === undefined ? [] : readLenderRecord(stored.value).places;
    const known = announced !== undefined || !lost || entries.some((entry) => entry.name === name);
    const instance = known ? freeNumber(entries, name, announced) : undefined;
    if (instance === undefined) {
      if (announced !== undefined) throw new Error(`Cannot lend: ${lendersMax} instances of the cluster already do`);
      announced = await discoverLenders(bus);
      continue;
    }
    const own = Math.max(incarnation, (entries[instance]?.incarnation ?? 0) + 1);
    if (await write(bus, entries, instance, { name, incarnation: own }, stored?.revision))
      return { instance, incarnation: own, isFirst: stored === undefined && !lost };
  }
}

/** Restores the entry whenever the record is lost. @param onTaken called if another instance has the number */
export function keepNumber(
  bus: Bus,
  name: string,
  { instance, incarnation }: LenderNumber,
  onTaken: () => void,
  log: (message: string) => void = () => {},
): RecordReconciler {
  const check = async (): Promise<void> => {
    for (;;) {
      const stored = await bus.records.read(key);
      const entries = stored === undefined ? [] : readLenderRecord(stored.value).places;
      const entry = entries[instance] ?? unassigned;
      if (entry.name === name && entry.incarnation >= incarnation) return;
      if (entry.incarnation !== unassigned.incarnation) {
        onTaken();
        return;
      }
      if (await write(bus, entries, instance, { name, incarnation }, stored?.revision)) return;
    }
  };
  return new RecordReconciler(bus, { what: 'the record of lenders', check, log });
}

/** Frees the number if it still belongs to this instance. */
export async function releaseNumber(bus: Bus, name: string, { instance, incarnation }: LenderNumber): Promise<void> {
  for (;;) {
    const stored = await bus.records.read(key);
    const entries = stored === undefined ? [] : readLenderRecord(stored.value).places;
    const own = entries[instance];
    if (own?.name !== name || own.incarnation !== incarnation) return;
    if (await write(bus, entries, instance, { name: '', incarnation }, stored?.revision)) return;
  }
}

/** Names of announced lenders, by number. */
type Announced = ReadonlyMap<InstanceIndex, string>;

/** The entry of a number that was never taken, or that is missing after a loss of the record. */
const unassigned: LenderEntry = { name: '', incarnation: 0 };

/** The instance's previous number, else a freed one, else a new one, else one whose owner does not announce itself. */
function freeNumber(
  entries: readonly LenderEntry[],
  name: string,
  announced: Announced | undefined,
): InstanceIndex | undefined {
  const own = entries.findIndex((entry) => entry.name === name);
  if (own >= 0) return own;
  for (const [instance, other] of announced ?? []) if (other === name) return instance;
  const isFree = (entry: LenderEntry, instance: InstanceIndex): boolean =>
    entry.name === '' && !announced?.has(instance);
  // After discovery, an unassigned number is free: its owner would be announced.
  const left = entries.findIndex(
    (entry, i) => isFree(entry, i) && (announced !== undefined || entry.incarnation > unassigned.incarnation),
  );
  if (left >= 0) return left;
  for (let instance = entries.length; instance < lendersMax; instance++) if (!announced?.has(instance)) return instance;
  const names = announced && new Set(announced.values());
  const silent = entries.findIndex((entry) => names?.has(entry.name) === false);
  return silent < 0 ? undefined : silent;
}

async function write(
  bus: Bus,
  entries: readonly LenderEntry[],
  instance: InstanceIndex,
  entry: LenderEntry,
  revision: number | undefined,
): Promise<boolean> {
  const changed = Array.from({ length: Math.max(entries.length, instance + 1) }, (_, i) => entries[i] ?? unassigned);
  changed[instance] = entry;
  return (await bus.records.write(key, encodeLenderRecord(changed), revision)) !== undefined;
}

function discoverLenders(bus: Bus): Promise<Announced> {
  const found = new Map<InstanceIndex, string>();
  const stop = bus.subscribe('beat.lender', (bytes) => {
    const lender = announcementOf(bytes);
    if (lender !== undefined) found.set(lender.instance, lender.name);
  });
  return new Promise((resolve) => {
    setTimeout(() => {
      stop();
      resolve(found);
    }, silentUs / 1000);
  });
}

/** Undefined for an instance of another version, which cannot lend to this one. */
function announcementOf(bytes: Uint8Array): LenderAnnouncement | undefined {
  try {
    return readLenderAnnouncement(bytes);
  } catch {
    return undefined;
  }
}
