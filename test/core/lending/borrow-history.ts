// Random histories of borrowing instances: requests arrive and are cancelled, an instance fails, and other events come in
// any order.
import fc from 'fast-check';
import { expect } from 'vitest';
import type { PrefixFetch } from '../../../src/core/protocol/events.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { expectedOutput } from '../instance-world.ts';
import type { BorrowWorld } from './borrow-world.ts';

/** Each selects the next event, and the time before it. */
export const arbitraryChoices = fc.array(fc.nat(1_000_000), { minLength: 200, maxLength: 600 });
export const arbitraryFailure = fc.option(fc.record({ instance: fc.nat(2), after: fc.nat(3_000) }), {
  nil: undefined,
  freq: 3,
});
/** Number of events from the arrival of a request to its cancellation. */
export const arbitraryCancel = fc.option(fc.nat(2_000), { nil: undefined, freq: 4 });

interface RequestArrival {
  readonly request: GenerationRequest;
  readonly at: number;
  /** Number of events before it. */
  readonly after: number;
  readonly cancelAfter: number | undefined;
  readonly prefix?: PrefixFetch | undefined;
}

interface History {
  readonly arrivals: readonly RequestArrival[];
  readonly choices: readonly number[];
  readonly failure: { readonly instance: number; readonly after: number } | undefined;
  readonly turns: number;
  /** Upper bound of the time between two events. */
  readonly intervalUsMax: number;
}

/** Throws unless every request that was not lost has the correct tokens, or failed because it no longer fits. */
export function runHistory(world: BorrowWorld, { arrivals, choices, failure, turns, intervalUsMax }: History): void {
  for (let turn = 0; turn < turns; turn++) {
    for (const { request, at, after, cancelAfter = -1, prefix } of arrivals) {
      if (turn === after && !world.dead.has(at)) world.submit(request, at, prefix);
      if (turn === after + cancelAfter) world.cancel(request.id);
    }
    if (turn === failure?.after) world.kill(failure.instance);
    const choice = choices[turn % choices.length] ?? 0;
    world.advance(choice + turn, choice % intervalUsMax, choice % 53 === 0);
  }
  world.finish();
  for (const { request } of arrivals) {
    const events = world.events.get(request.id);
    if (events === undefined) continue;
    const last = events.at(-1);
    if (last?.kind === 'failed') expect(last.code).toBe('CONTEXT_TOO_LONG');
    else expect([request.id, world.tokensOf(request.id)]).toEqual([request.id, expectedOutput(request).tokens]);
  }
  expect(world.faults).toEqual([]);
}
