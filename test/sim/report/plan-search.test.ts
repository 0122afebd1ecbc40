// The search for the cheapest cluster against exhaustive search.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  cheapestOf,
  frontierOf,
  levelsOf,
  type Shape,
  searchPlans,
  type Unit,
} from '../../../src/sim/report/plan-search.ts';

/** Hardware with a share that grows with the instances of either role, in steps at random corners. */
interface Candidate extends Unit {
  readonly corners: readonly (Shape & { readonly share: number })[];
}

const instancesMax = 7;
const limits = { instancesMax, within: 0.9 };

function shareOf({ corners }: Candidate, { prefill, decode, mixed }: Shape): number {
  const reached = corners.filter((c) => c.prefill <= prefill && c.decode <= decode && c.mixed <= mixed);
  return Math.max(0, ...reached.map(({ share }) => share));
}

async function search(units: readonly Candidate[]) {
  const trials = await searchPlans(units, limits, async (unit, shape) => ({ share: shareOf(unit, shape) }));
  return { trials, cheapest: cheapestOf(trials, limits.within) };
}

function everyCluster(units: readonly Candidate[]) {
  return units.flatMap((unit) =>
    levelsOf(unit, instancesMax).flatMap((instances, i) => {
      const disaggregated = Array.from({ length: instances - 1 }, (_, p) => {
        return { prefill: p + 1, decode: instances - p - 1, mixed: 0 };
      });
      return [{ prefill: 0, decode: 0, mixed: instances }, ...disaggregated].map((shape) => {
        return {
          unit,
          decodeUnit: unit,
          machines: i + 1,
          pricePerHour: (i + 1) * unit.pricePerHour,
          share: shareOf(unit, shape),
          ...shape,
        };
      });
    }),
  );
}

const role = fc.integer({ min: 1, max: instancesMax });
const share = fc.constantFrom(0.1, 0.5, 0.89, 0.9, 1);
const corner = fc.oneof(
  fc.record({ prefill: fc.constant(0), decode: fc.constant(0), mixed: role, share }),
  fc.record({ prefill: role, decode: role, mixed: fc.constant(0), share }),
);
const candidate: fc.Arbitrary<Candidate> = fc.record({
  instancesPerMachine: fc.constantFrom(1, 1, 2, 8),
  pricePerHour: fc.integer({ min: 1, max: 6 }),
  corners: fc.array(corner, { maxLength: 5 }),
});

describe('the search for the cheapest cluster', () => {
  it('finds the result of exhaustive search, with fewer trials', async () => {
    let tried = 0;
    let all = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(candidate, { minLength: 1, maxLength: 3 }), async (units) => {
        const { trials, cheapest } = await search(units);
        const every = everyCluster(units);
        expect(cheapest?.pricePerHour).toBe(cheapestOf(every, limits.within)?.pricePerHour);
        tried += trials.length;
        all += every.length;
      }),
      { numRuns: 500, seed: 7 },
    );
    expect(tried).toBeLessThan(all / 2);
  });

  it('counts what a cluster has besides its instances, and tries none that cannot run', async () => {
    const plain: Candidate = {
      ...{ instancesPerMachine: 1, pricePerHour: 4 },
      corners: [{ prefill: 0, decode: 0, mixed: 4, share: 1 }],
    };
    const smaller = { prefill: 0, decode: 0, mixed: 2, share: 1 };
    const cheaper: Candidate = { ...plain, addedPricePerHour: 7, instancesMin: 2, prefillMin: 0, corners: [smaller] };
    const { trials, cheapest } = await search([plain, cheaper]);
    expect(cheapest).toMatchObject({ unit: cheaper, mixed: 2, pricePerHour: 15 });
    const sizes = trials.map(({ unit, mixed, prefill, decode }) => (unit === cheaper ? mixed + prefill + decode : 2));
    expect(Math.min(...sizes)).toBe(2);
    const dearer = { ...cheaper, addedPricePerHour: 9 };
    expect((await search([plain, dearer])).cheapest).toMatchObject({ unit: plain, pricePerHour: 16 });
    const grouped = { ...cheaper, prefillMin: 3 };
    expect((await search([grouped])).trials.every(({ prefill }) => prefill >= 3)).toBe(true);
  });

  it('finds the result of exhaustive search over pairs of hardware for prefill and decode', async () => {
    const unit = fc.record({
      instancesPerMachine: fc.constantFrom(0.5, 1, 2),
      pricePerHour: fc.integer({ min: 1, max: 6 }),
    });
    const needs = fc.record({ prefill: role, decode: role });
    let heterogeneous = 0;
    await fc.assert(
      fc.asyncProperty(unit, unit, needs, needs, async (a, b, needA, needB) => {
        const units: readonly Unit[] = [a, b];
        const meetsTarget = (p: Unit, { prefill, decode, mixed }: Shape, d: Unit) =>
          mixed === 0 && prefill >= (p === a ? needA : needB).prefill && decode >= (d === a ? needA : needB).decode;
        const runTrial = async (p: Unit, shape: Shape, d: Unit) => ({ share: meetsTarget(p, shape, d) ? 1 : 0 });
        const pairs = [
          [a, b],
          [b, a],
        ] as const;
        const found = cheapestOf(await searchPlans(units, limits, runTrial, pairs), limits.within);
        const machines = (u: Unit, n: number) => Math.ceil(n / u.instancesPerMachine);
        let cheapest = Number.POSITIVE_INFINITY;
        for (const [p, d] of [...pairs, [a, a], [b, b]] as const) {
          for (const prefill of p === d ? [1, 2, 3, 4, 5, 6] : levelsOf(p, instancesMax)) {
            for (const decode of p === d ? [1, 2, 3, 4, 5, 6] : levelsOf(d, instancesMax)) {
              const instances = prefill + decode;
              if (instances > instancesMax || !meetsTarget(p, { prefill, decode, mixed: 0 }, d)) continue;
              const price =
                p === d
                  ? (levelsOf(p, instancesMax).findIndex((level) => level >= instances) + 1) *
                    Math.max(1, 1 / p.instancesPerMachine) *
                    p.pricePerHour
                  : machines(p, prefill) * p.pricePerHour + machines(d, decode) * d.pricePerHour;
              if (price > 0) cheapest = Math.min(cheapest, price);
            }
          }
        }
        expect(found?.pricePerHour ?? Number.POSITIVE_INFINITY).toBe(cheapest);
        if (found !== undefined && found.unit !== found.decodeUnit) heterogeneous++;
      }),
      { numRuns: 300, seed: 3 },
    );
    expect(heterogeneous).toBeGreaterThan(20);
  });

  it('tries no cluster more expensive than one that meets the target, and none twice', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(candidate, { minLength: 1, maxLength: 3 }), async (units) => {
        const { trials } = await search(units);
        let pricePerHour = Number.POSITIVE_INFINITY;
        const seen = new Set<string>();
        for (const trial of trials) {
          expect(trial.pricePerHour).toBeLessThanOrEqual(pricePerHour);
          if (trial.share >= limits.within) pricePerHour = Math.min(pricePerHour, trial.pricePerHour);
          seen.add(JSON.stringify([units.indexOf(trial.unit), trial.prefill, trial.decode, trial.mixed]));
        }
        expect(seen.size).toBe(trials.length);
      }),
      { numRuns: 300, seed: 8 },
    );
  });

  it('finds a smaller cluster below one that slightly misses the target', async () => {
    const unit = { instancesPerMachine: 1, pricePerHour: 1 };
    const shares = [0, 0.95, 0.8, 0.95, 1, 1, 1];
    const trials = await searchPlans([unit], limits, async (_, { mixed }) => ({ share: shares[mixed - 1] ?? 0 }));
    expect(cheapestOf(trials, limits.within)).toMatchObject({ mixed: 2, pricePerHour: 2 });
  });

  it('returns a frontier with growing prices and shares', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(candidate, { minLength: 1, maxLength: 3 }), async (units) => {
        const { trials, cheapest } = await search(units);
        const frontier = frontierOf(trials);
        for (const [i, { pricePerHour, share }] of frontier.entries()) {
          if (i > 0) expect(pricePerHour).toBeGreaterThan(frontier[i - 1]?.pricePerHour ?? 0);
          const rivals = trials.filter((trial) => trial.pricePerHour <= pricePerHour);
          expect(Math.max(...rivals.map((trial) => trial.share))).toBe(share);
        }
        if (cheapest !== undefined) expect(frontier).toContain(cheapest);
      }),
      { numRuns: 200, seed: 9 },
    );
  });
});
