// Prompts that were computed elsewhere and have landed: each is taken, or refused where it would be late.

import type { RequestId } from '../../protocol/ports.ts';
import type { DecodeCheck } from '../../scheduler/decode-slo-check.ts';
import type { Emit, Served, Work } from '../../scheduler/executor-work.ts';
import type { Roster } from '../../scheduler/request-table.ts';
import type { HandOffs } from './hand-offs.ts';

export interface Landing<Request extends { readonly id: RequestId }, S extends Served, Plan, Result> {
  /** The last look; undefined: all are taken. */
  readonly check: DecodeCheck<Request, S> | undefined;
  readonly capacityTokens: number;
  readonly handOffs: HandOffs<Request, S>;
  readonly roster: Roster<S>;
  readonly work: Work<Request, S, Plan, Result>;
  readonly emit: Emit;
  readonly nextArrival: () => number;
}

export function takeLanded<Request extends { readonly id: RequestId }, S extends Served, Plan, Result>(
  parts: Landing<Request, S, Plan, Result>,
): void {
  const { check, capacityTokens, roster, work, emit, nextArrival } = parts;
  const { arrivals } = parts.handOffs;
  for (const { id, request, held, inParts } of arrivals.takeLanded()) {
    const late = check?.refusal(request, capacityTokens);
    if (late === undefined) {
      const served = work.resume(request, nextArrival(), held, inParts);
      served.sequence.landedPages = arrivals.pagesOf(id);
      roster.take(served);
    } else {
      arrivals.drop(id);
      emit(id, late);
    }
  }
}
