// Requests that wait for one another in a cluster, and cycles among them.

import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';

/** A request at an instance. */
export type Waiter = string;

/** A waiter continues when one entry of each of its lists does. An empty list: it can never continue. */
export type Waits = ReadonlyMap<Waiter, readonly (readonly Waiter[])[]>;

function at(id: RequestId, instance: InstanceIndex): Waiter {
  return `${id} at ${instance}`;
}

/**
 * Requests that are not in the result continue by themselves: they run, their bytes are under way, or a timeout ends. That includes requests
 * that load prefixes or wait for loans, and members of a group, which release everything when one of them is short of memory.
 */
export function waitsOf(instances: readonly LengthInstance[]): Waits {
  const waits = new Map<Waiter, (readonly Waiter[])[]>();
  const add = (waiter: Waiter, forOneOf: readonly Waiter[]) => {
    const all = waits.get(waiter);
    if (all === undefined) waits.set(waiter, [forOneOf]);
    else all.push(forOneOf);
  };
  for (const [i, { requests, components }] of instances.entries()) {
    // Waits for KV memory and a place in the batch end when a request ends that runs or holds blocks.
    const holders: Waiter[] = [];
    const waiting: Waiter[] = [];
    for (const { id, sequence } of requests.sequences()) {
      if (sequence.state === 'running' || sequence.state === 'parked') holders.push(at(id, i));
      else if (sequence.state === 'waiting' && !sequence.loading) waiting.push(at(id, i));
    }
    // Without holders, blocks are under way, or lent: those loans end by recall or with their leases.
    if (holders.length > 0) for (const waiter of waiting) add(waiter, holders);
    // Waits for receive buffers end when a request with a buffer ends.
    const arrivals = [...components.handOff.receiver.all()];
    const granted = arrivals.filter((arrival) => arrival.granted).map(({ id }) => at(id, i));
    for (const { id, reservation, granted: has, missing } of arrivals) {
      if (!has) add(at(id, i), granted);
      // Reports reveal failed senders. A sender that missed the grant, or released it, is resolved by retransmission.
      else
        for (const from of missing)
          if (instances[from].components.handOff.sender.grantedReservation(id) === reservation)
            add(at(id, i), [at(id, from)]);
    }
    for (const { id, to } of components.handOff.sender.awaitingReceiveMemory())
      for (const arrival of instances[to].components.handOff.receiver.all())
        if (arrival.id === id && !arrival.granted) add(at(id, i), [at(id, to)]);
  }
  return waits;
}

/** Requests that can never continue, as the text of one cycle; undefined: none. */
export function cycleOfWaits(waits: Waits): string | undefined {
  const stuck = new Set(waits.keys());
  const continues = (waiter: Waiter) =>
    waits.get(waiter)?.every((oneOf) => oneOf.some((other) => !stuck.has(other))) === true;
  for (let left = -1; left !== stuck.size; ) {
    left = stuck.size;
    for (const waiter of stuck) if (continues(waiter)) stuck.delete(waiter);
  }
  const cycle: Waiter[] = [];
  let next: Waiter | undefined = [...stuck][0];
  while (next !== undefined && !cycle.includes(next)) {
    cycle.push(next);
    const blocked: readonly Waiter[] | undefined = waits
      .get(next)
      ?.find((oneOf) => oneOf.every((other) => stuck.has(other)));
    next = blocked?.[0];
  }
  if (cycle.length === 0) return undefined;
  return [...cycle.slice(next === undefined ? 0 : cycle.indexOf(next)), next ?? 'nothing'].join(' -> ');
}
