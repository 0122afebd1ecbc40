// Who waits for whom in a cluster, at any moment.

import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';

/** A request at an instance. */
export type Waiter = string;

/** What has to happen before a waiter goes on: of each list, one of those named in it. An empty list: nobody can help. */
export type Waits = ReadonlyMap<Waiter, readonly (readonly Waiter[])[]>;

function at(id: RequestId, instance: InstanceIndex): Waiter {
  return `${id} at ${instance}`;
}

/**
 * Those not in it go on by themselves: they run, or their bytes are on the way, or somebody's patience ends. That holds for prefixes that load,
 * for members of a group, which let go at once when one of them is short of memory, and for those who wait for loans.
 */
export function waitsOf(instances: readonly LengthInstance[]): Waits {
  const waits = new Map<Waiter, (readonly Waiter[])[]>();
  const add = (who: Waiter, forOneOf: readonly Waiter[]) => {
    const all = waits.get(who);
    if (all === undefined) waits.set(who, [forOneOf]);
    else all.push(forOneOf);
  };
  for (const [i, { roster, handOffs }] of instances.entries()) {
    // For KV memory and a place: who runs, or keeps blocks.
    const holders: Waiter[] = [];
    const waiting: Waiter[] = [];
    for (const { id, sequence } of roster.sequences()) {
      if (sequence.state === 'running' || sequence.state === 'parked') holders.push(at(id, i));
      else if (sequence.state === 'waiting' && !sequence.loading) waiting.push(at(id, i));
    }
    // Where nobody has any, something is on its way, or others do, whose loans end: by recall, or by their leases.
    if (holders.length > 0) for (const who of waiting) add(who, holders);
    // For memory to land in: who has some.
    const arrivals = [...handOffs.arrivals.all()];
    const granted = arrivals.filter((arrival) => arrival.granted).map(({ id }) => at(id, i));
    for (const { id, asking, granted: has, missing } of arrivals) {
      if (!has) add(at(id, i), granted);
      // What nobody has any more is lost: reports tell. Whoever has not heard that there is memory, or gave it up, is told, or tells: they say it again.
      else
        for (const from of missing)
          if (instances[from].handOffs.departures.grantedAsking(id) === asking) add(at(id, i), [at(id, from)]);
    }
    for (const { id, to } of handOffs.departures.stranded())
      for (const arrival of instances[to].handOffs.arrivals.all())
        if (arrival.id === id && !arrival.granted) add(at(id, i), [at(id, to)]);
  }
  return waits;
}

/** Who can never go on, as one way round, in words; undefined: all can. */
export function cycleOfWaits(waits: Waits): string | undefined {
  const stuck = new Set(waits.keys());
  const goesOn = (who: Waiter) => waits.get(who)?.every((oneOf) => oneOf.some((other) => !stuck.has(other))) === true;
  for (let left = -1; left !== stuck.size; ) {
    left = stuck.size;
    for (const who of stuck) if (goesOn(who)) stuck.delete(who);
  }
  const way: Waiter[] = [];
  let next: Waiter | undefined = [...stuck][0];
  while (next !== undefined && !way.includes(next)) {
    way.push(next);
    const blocked: readonly Waiter[] | undefined = waits
      .get(next)
      ?.find((oneOf) => oneOf.every((other) => stuck.has(other)));
    next = blocked?.[0];
  }
  if (way.length === 0) return undefined;
  return [...way.slice(next === undefined ? 0 : way.indexOf(next)), next ?? 'nobody'].join(' -> ');
}
