// Prompts that were computed elsewhere and have landed: each is taken, or refused where it would be late.

import type { RequestId } from '../../protocol/ids.ts';
import type { DecodeCheck } from '../../scheduler/decode-slo-check.ts';
import type { Emit, Executor, RunningRequest } from '../../scheduler/executor/executor.ts';
import type { RequestTable } from '../../scheduler/request-table.ts';
import type { HandOffs } from './hand-offs.ts';

export interface ReceivedPromptsContext<
  Request extends { readonly id: RequestId },
  S extends RunningRequest,
  Plan,
  Result,
> {
  /** The last look; undefined: all are taken. */
  readonly check: DecodeCheck<Request, S> | undefined;
  readonly capacityTokens: number;
  readonly handOffs: HandOffs<Request, S>;
  readonly roster: RequestTable<S>;
  readonly work: Executor<Request, S, Plan, Result>;
  readonly emit: Emit;
  readonly nextArrival: () => number;
}

export function admitReceived<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result>(
  parts: ReceivedPromptsContext<Request, S, Plan, Result>,
): void {
  const { check, capacityTokens, roster, work, emit, nextArrival } = parts;
  const { arrivals } = parts.handOffs;
  for (const { id, request, held, inParts } of arrivals.takeLanded()) {
    const late = check?.refusal(request, capacityTokens);
    if (late === undefined) {
      const served = work.resume(request, nextArrival(), held, inParts);
      served.sequence.receivedPages = arrivals.pagesOf(id);
      roster.take(served);
    } else {
      arrivals.drop(id);
      emit(id, late);
    }
  }
}
