// Fair shares of tenants of one priority at one instance: which request starts next, and how far the shares can diverge.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { limits, promptOf, request, World } from '../instance-world.ts';

const narrow = { ...limits, tokensMax: 64, sequencesMax: 1 };

/** Requests in the order of their first tokens. */
function firstsOf(world: World): readonly string[] {
  const firsts = new Set<string>();
  while (world.running !== undefined) {
    world.finishStep();
    for (const [id, { tokens }] of world.received) if (tokens.length > 0) firsts.add(id);
  }
  return [...firsts];
}

function submitAll(world: World): void {
  world.submit(request('first', promptOf(0, 40), { tenant: 'many' }));
  for (let i = 1; i <= 4; i++) world.submit(request(`many${i}`, promptOf(i, 40), { tenant: 'many' }));
  for (let i = 1; i <= 3; i++) world.submit(request(`few${i}`, promptOf(10 + i, 40), { tenant: 'few' }));
}

describe('tenants', () => {
  test('alternate while both wait, although one of them submitted all of its requests earlier', () => {
    const world = new World({ limits: narrow });
    submitAll(world);
    expect(firstsOf(world)).toEqual(['first', 'few1', 'many1', 'few2', 'many2', 'few3', 'many3', 'many4']);
    const blind = new World({ limits: { ...narrow, order: 'arrival' } });
    submitAll(blind);
    expect(firstsOf(blind)).toEqual(['first', 'many1', 'many2', 'many3', 'many4', 'few1', 'few2', 'few3']);
  });

  test('are charged for output, twice as much as for prompts', () => {
    const world = new World({ limits: narrow });
    world.submit(request('writes', promptOf(1, 20), { tenant: 'a', maxTokens: 40 }));
    world.submit(request('a1', promptOf(2, 20), { tenant: 'a' }), request('a2', promptOf(3, 20), { tenant: 'a' }));
    for (let i = 0; i < 4; i++) world.submit(request(`b${i}`, promptOf(4 + i, 20), { tenant: 'b' }));
    // Tenant a was served 20 + 2 * 40: b goes first until it was served as much, 20 + 2 * 4 each time.
    expect(firstsOf(world)).toEqual(['writes', 'b0', 'b1', 'b2', 'a1', 'b3', 'a2']);
  });

  test('a tenant that returns has saved no share while it was idle', () => {
    const world = new World({ limits: narrow });
    for (let i = 0; i < 6; i++) world.submit(request(`a${i}`, promptOf(i, 40), { tenant: 'a' }));
    world.submit(request('once', promptOf(20, 40), { tenant: 'b' }));
    while (world.of('a3').tokens.length === 0) world.finishStep();
    for (let i = 0; i < 3; i++) world.submit(request(`b${i}`, promptOf(30 + i, 40), { tenant: 'b' }));
    const firsts = firstsOf(world).filter((id) => !['a0', 'a1', 'a2', 'a3', 'once'].includes(id));
    expect(firsts.indexOf('a4')).toBeLessThan(2);
  });

  test('a started prompt of several chunks is not overtaken by earlier requests of another tenant', () => {
    const world = new World({ limits: { ...narrow, sequencesMax: 8 } });
    for (let i = 0; i < 12; i++) world.submit(request(`flood${i}`, promptOf(i, 48), { tenant: 'flood' }));
    world.finishStep();
    world.submit(request('calm', promptOf(20, 48), { tenant: 'calm' }));
    expect(firstsOf(world).indexOf('calm')).toBeLessThanOrEqual(3);
  });

  test('no request of a tenant waits longer than its share allows, started or not', () => {
    const loads = fc.record({
      flood: fc.array(fc.integer({ min: 30, max: 60 }), { minLength: 40, maxLength: 40 }),
      calm: fc.integer({ min: 8, max: 200 }),
      sequencesMax: fc.integer({ min: 1, max: 8 }),
      steps: fc.integer({ min: 1, max: 6 }),
    });
    fc.assert(
      fc.property(loads, ({ flood, calm, sequencesMax, steps }) => {
        const world = new World({ limits: { ...narrow, sequencesMax } });
        flood.forEach((prompt, i) => {
          world.submit(request(`flood${i}`, promptOf(i, prompt), { tenant: 'flood' }));
        });
        const served = () =>
          flood.reduce((sum, prompt, i) => {
            const outputs = world.of(`flood${i}`).tokens.length;
            return sum + (outputs === 0 ? 0 : prompt + 2 * outputs);
          }, 0);
        for (let i = 0; i < steps; i++) world.finishStep();
        const before = served();
        world.submit(request('calm', promptOf(50, calm), { tenant: 'calm' }));
        while (world.of('calm').tokens.length === 0) world.finishStep();
        // What runs is finished, and each slot may serve one more request; the other tenant's prompt counts once.
        expect(served() - before).toBeLessThanOrEqual((sequencesMax + 2) * (60 + 2 * 4) + calm);
      }),
      { numRuns: 60 },
    );
  });

  test('a higher priority goes first, whatever its tenant was served', () => {
    const world = new World({ limits: narrow });
    submitAll(world);
    world.submit(request('urgent', promptOf(30, 40), { tenant: 'many', priority: 1 }));
    expect(firstsOf(world)[1]).toBe('urgent');
  });

  test('no tenant starves, and tenants that wait together get equal shares', () => {
    const sizes = fc.array(
      fc.record({ prompt: fc.integer({ min: 8, max: 60 }), output: fc.integer({ min: 1, max: 12 }) }),
      {
        minLength: 12,
        maxLength: 12,
      },
    );
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 4 }), (all, sequencesMax) => {
        const world = new World({ limits: { ...narrow, sequencesMax } });
        const tenantOf = (i: number) => (i < 8 ? 'many' : 'few');
        all.forEach(({ prompt, output }, i) => {
          world.submit(request(`r${i}`, promptOf(i, prompt), { tenant: tenantOf(i), maxTokens: output }));
        });
        const served = { many: 0, few: 0 };
        const counted = new Map<string, number>();
        let widest = 0;
        while (world.running !== undefined) {
          world.finishStep();
          all.forEach(({ prompt }, i) => {
            const { tokens } = world.of(`r${i}`);
            const now = tokens.length === 0 ? 0 : prompt + 2 * tokens.length;
            served[tenantOf(i)] += now - (counted.get(`r${i}`) ?? 0);
            counted.set(`r${i}`, now);
          });
          const waits = (tenant: string) =>
            all.some((_, i) => tenantOf(i) === tenant && world.of(`r${i}`).tokens.length === 0);
          if (waits('few') && waits('many')) widest = Math.max(widest, Math.abs(served.many - served.few));
        }
        // Twice the service of the sequences that run at once, at the longest prompts and outputs.
        expect(widest).toBeLessThanOrEqual(2 * (sequencesMax + 1) * (60 + 2 * 12));
        expect(all.every(({ output }, i) => world.of(`r${i}`).tokens.length === output)).toBe(true);
      }),
      { numRuns: 60 },
    );
  });
});
