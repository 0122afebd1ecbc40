// Random histories of borrowing instances: requests arrive and are cancelled, an instance crashes, and all other events
// come in any order.
import fc from 'fast-check';
import { expect } from 'vitest';
import type { PrefixFetch } from '../../../src/core/protocol/events.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { expectedOutput } from '../router/world.ts';
import type { BorrowWorld } from './borrow-world.ts';

/** The next event, and the time before it. */
export const arbitraryChoices = fc.array(fc.nat(1_000_000), { minLength: 200, maxLength: 600 });
export const arbitraryDeath = fc.option(fc.record({ instance: fc.nat(2), after: fc.nat(3_000) }), {
  nil: undefined,
  freq: 3,
});
/** Cancels a request after this number of further events. */
export const arbitraryPatience = fc.option(fc.nat(2_000), { nil: undefined, freq: 4 });

interface Coming {
  readonly request: GenerationRequest;
  readonly at: number;
  /** This number of further events happens first. */
  readonly after: number;
  readonly cancelAfter: number | undefined;
  readonly prefix?: PrefixFetch | undefined;
}

interface History {
  readonly coming: readonly Coming[];
  readonly choices: readonly number[];
  readonly death: { readonly instance: number; readonly after: number } | undefined;
  readonly turns: number;
  /** Upper bound of the time between two events. */
  readonly passesUs: number;
}

/** A surviving request has the right tokens, or it no longer fits. */
export function live(world: BorrowWorld, { coming, choices, death, turns, passesUs }: History): void {
  for (let turn = 0; turn < turns; turn++) {
    for (const { request, at, after, cancelAfter = -1, prefix } of coming) {
      if (turn === after && !world.dead.has(at)) world.submit(request, at, prefix);
      if (turn === after + cancelAfter) world.cancel(request.id);
    }
    if (turn === death?.after) world.kill(death.instance);
    const choice = choices[turn % choices.length] ?? 0;
    world.advance(choice + turn, choice % passesUs, choice % 53 === 0);
  }
  world.finish();
  for (const { request } of coming) {
    const events = world.heard.get(request.id);
    if (events === undefined) continue;
    const last = events.at(-1);
    if (last?.kind === 'failed') expect(last.code).toBe('CONTEXT_TOO_LONG');
    else expect([request.id, world.tokensOf(request.id)]).toEqual([request.id, expectedOutput(request).tokens]);
  }
  expect(world.faults).toEqual([]);
}
