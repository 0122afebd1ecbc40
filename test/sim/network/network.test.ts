// Flows against the definition of fairness, and against arithmetic.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { TransferTimes } from '../../../src/core/cost/transfer-times.ts';
import { FairShare, type SharedFlow, type SharedResource } from '../../../src/sim/network/fair-share.ts';
import { Network, type NetworkConfig, rackLinks } from '../../../src/sim/network/network.ts';

const nic = { bytesPerSecond: 1e9, us: 10 };

/** A network and its events alone. Records the departure of each stream. */
class NetworkWorld {
  readonly network: Network;
  readonly left = new Map<string, number>();
  nowUs = 0;

  constructor(config: Partial<NetworkConfig> = {}) {
    const nics = Array.from({ length: 6 }, () => nic);
    this.network = new Network({ nics, linkBytesPerSecond: undefined, ...config });
  }

  runTo(timeUs: number): void {
    this.network.refresh();
    while (this.network.nextUs <= timeUs && this.network.nextUs < Number.POSITIVE_INFINITY) {
      this.nowUs = this.network.nextUs;
      for (;;) {
        const departed = this.network.due(this.nowUs);
        if (departed === undefined) break;
        this.left.set(departed.name, this.nowUs);
      }
      this.network.refresh();
      this.network.check();
    }
    if (timeUs < Number.POSITIVE_INFINITY) this.nowUs = timeUs;
  }

  send(name: string, from: number, to: number, bytes: number, { untilUs = this.nowUs, last = true } = {}): void {
    this.network.stream(this.nowUs, { from, to, name, kind: 'handoff' }, { bytes, untilUs, last });
  }

  finish(): ReadonlyMap<string, number> {
    this.runTo(Number.POSITIVE_INFINITY);
    expect(this.network.size).toBe(0);
    return this.left;
  }
}

describe('fair shares', () => {
  const flow = fc.record({
    resources: fc.uniqueArray(fc.nat(5), { minLength: 1, maxLength: 3 }),
    demand: fc.oneof(fc.integer({ min: 1, max: 20 }), fc.constant(Number.POSITIVE_INFINITY)),
  });
  it('raise every flow to its demand, or to the largest share on a full resource', () => {
    const capacities = fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 6, maxLength: 6 });
    fc.assert(
      fc.property(fc.array(flow, { minLength: 1, maxLength: 12 }), capacities, (drawn, capacity) => {
        const flows: SharedFlow[] = [];
        const users = capacity.map((): SharedFlow[] => []);
        const all = capacity.map(
          (capacity, at): SharedResource => ({ capacity, users: users[at] ?? [], left: 0, open: 0 }),
        );
        for (const { resources, demand } of drawn) {
          const flow = { resources: resources.flatMap((at) => all[at] ?? []), demand, share: 0, open: false };
          flows.push(flow);
          for (const at of resources) users[at]?.push(flow);
        }
        const used = all.filter(({ users }) => users.length > 0);
        new FairShare().share(flows, used);
        for (const { capacity, users } of used)
          expect(users.reduce((sum, { share }) => sum + share, 0)).toBeLessThanOrEqual(capacity + 1e-9);
        for (const { resources, share, demand } of flows) {
          const held = resources.some(({ capacity, users }) => {
            const load = users.reduce((sum, { share }) => sum + share, 0);
            return load > capacity - 1e-9 && share > Math.max(...users.map(({ share }) => share)) - 1e-9;
          });
          expect(held || Math.abs(share - demand) < 1e-9).toBe(true);
        }
      }),
    );
  });
});

describe('the network', () => {
  it('gives a lone transfer its NIC, or the link where that is narrower', () => {
    const wide = new NetworkWorld();
    wide.send('a', 0, 1, 5_000_000);
    expect(wide.finish()).toEqual(new Map([['a', 5_000]]));
    const narrow = new NetworkWorld({ linkBytesPerSecond: 1e8 });
    narrow.send('a', 0, 1, 5_000_000);
    narrow.send('b', 0, 2, 5_000_000);
    expect(narrow.finish()).toEqual(
      new Map([
        ['a', 50_000],
        ['b', 50_000],
      ]),
    );
    expect(narrow.network.moved).toEqual({ prefix: 0, handoff: 10_000_000, borrow: 0, settle: 0, activations: 0 });
  });

  it('shares a NIC between transfers, and gives what one leaves to the others', () => {
    const world = new NetworkWorld();
    world.send('short', 0, 1, 1_000_000);
    world.send('long', 0, 2, 3_000_000);
    // Half each until the short one has left at 2,000 us; then the long one has 2 MB left.
    expect(world.finish()).toEqual(
      new Map([
        ['short', 2_000],
        ['long', 4_000],
      ]),
    );
  });

  it('shares the uplinks of racks between transfers that leave or enter them, and adds their latency', () => {
    const racks = { instances: 3, bytesPerSecond: 5e8, us: 40 };
    const world = new NetworkWorld({ racks });
    world.send('near', 0, 1, 1_000_000);
    world.send('far', 2, 3, 1_000_000);
    world.send('other far', 2, 4, 1_000_000);
    // The two transfers between racks have half of 0.5 GB/s each.
    expect(world.finish()).toEqual(
      new Map([
        ['near', 1_000],
        ['far', 4_000],
        ['other far', 4_000],
      ]),
    );
    expect([world.network.latencyUs(0, 1), world.network.latencyUs(0, 3)]).toEqual([10, 50]);
    expect(world.network.bytesPerUs(0, 3)).toBe(500);
    const times = new TransferTimes({
      ends: Array.from({ length: 6 }, () => nic),
      linkBytesPerSecond: undefined,
      bytesPerToken: 1_000,
      link: rackLinks({ nics: Array.from({ length: 6 }, () => nic), linkBytesPerSecond: undefined, racks }),
    });
    expect([times.predictUs(0, 0, 1, 1_000), times.predictUs(0, 0, 3, 1_000)]).toEqual([1_020, 2_100]);
  });

  it('gives a transfer what other transfers cannot use, directly or indirectly', () => {
    const world = new NetworkWorld();
    // Three transfers into 5 share its side; 0 also sends to 4, at the remaining two thirds.
    for (const from of [0, 1, 2]) world.send(`in${from}`, from, 5, 1_000_000);
    world.send('out', 0, 4, 1_000_000);
    expect(world.finish().get('out')).toBe(1_500);
  });

  it('sends no faster than bytes are produced, and leaves the rest to other transfers', () => {
    const world = new NetworkWorld();
    // A quarter of the NIC for 4 ms; the other transfer has three quarters.
    world.send('made', 0, 1, 1_000_000, { untilUs: 4_000, last: false });
    world.send('whole', 0, 2, 3_000_000);
    world.runTo(4_000);
    expect(world.left).toEqual(new Map([['whole', 4_000]]));
    world.send('made', 0, 1, 0);
    expect(world.finish().get('made')).toBe(4_000);
  });

  it('hides what the link can carry during computation; the tail is the rest', () => {
    const world = new NetworkWorld();
    world.send('made', 0, 1, 10_000_000, { untilUs: 4_000, last: false });
    world.runTo(4_000);
    world.send('made', 0, 1, 2_000_000);
    expect(world.finish().get('made')).toBe(12_000);
  });

  it('drops a stopped stream, and counts the bytes that had left', () => {
    const world = new NetworkWorld();
    world.send('stopped', 0, 1, 5_000_000);
    world.send('stays', 0, 2, 2_000_000);
    world.runTo(1_000);
    world.network.stop(world.nowUs, { from: 0, to: 1, name: 'stopped', kind: 'handoff' });
    world.network.stop(world.nowUs, { from: 0, to: 1, name: 'stopped', kind: 'handoff' });
    expect(world.finish()).toEqual(new Map([['stays', 2_500]]));
    expect(world.network.moved.handoff).toBe(2_500_000);
  });

  it('shares one NIC between hundreds of transfers, which end in the order of their sizes', () => {
    const world = new NetworkWorld();
    // The k-th has k kB: while n are left, each has 1000 / n bytes per microsecond.
    for (let k = 1; k <= 300; k++) world.send(`k${k}`, 0, 1 + (k % 5), 1_000 * k);
    let expectedUs = 0;
    const left = world.finish();
    for (let k = 1; k <= 300; k++) {
      expectedUs += 300 - k + 1;
      // Up to a microsecond of rounding for each that has left.
      expect(Math.abs((left.get(`k${k}`) ?? 0) - expectedUs)).toBeLessThanOrEqual(k);
    }
    expect(left.get('k300')).toBeGreaterThanOrEqual((300 * 301) / 2);
  });

  it('carries everything, no sooner than the slowest end allows', () => {
    const transfer = fc.record({
      at: fc.nat(5_000),
      from: fc.nat(2),
      to: fc.integer({ min: 3, max: 5 }),
      bytes: fc.integer({ min: 1, max: 3_000_000 }),
      makeUs: fc.nat(3_000),
    });
    fc.assert(
      fc.property(fc.array(transfer, { minLength: 1, maxLength: 20 }), (transfers) => {
        const world = new NetworkWorld();
        const sorted = transfers.toSorted((a, b) => a.at - b.at);
        const load = new Map<number, number>();
        for (const [i, { at, from, to, bytes, makeUs }] of sorted.entries()) {
          world.runTo(at);
          world.send(`t${i}`, from, to, bytes, { untilUs: at + makeUs });
          for (const end of [from, to]) load.set(end, (load.get(end) ?? 0) + bytes);
        }
        const left = world.finish();
        expect(left.size).toBe(transfers.length);
        sorted.forEach(({ at, bytes, makeUs }, i) => {
          expect(left.get(`t${i}`)).toBeGreaterThanOrEqual(at + Math.max(makeUs, Math.floor(bytes / 1_000)));
        });
        // The busiest end was busy or waited for production until the end.
        const busiest = Math.max(...load.values());
        const lastMade = Math.max(...sorted.map(({ at, makeUs }) => at + makeUs));
        expect(Math.max(...left.values())).toBeLessThanOrEqual(lastMade + (2 * busiest) / 1_000 + transfers.length);
        expect(world.network.moved.handoff).toBe(sorted.reduce((sum, { bytes }) => sum + bytes, 0));
      }),
    );
  });
});
