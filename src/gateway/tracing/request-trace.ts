// GET /api/requests/ID: the state of a request, its placements, and its predicted and actual times.

import type { ClusterView } from '../../core/protocol/ports.ts';
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import { oneLine } from '../../util/one-line.ts';
import { ApiError, describeCause, requestIdOf } from '../http/errors.ts';
import type { Caller } from '../keys/caller.ts';
import { type Outcome, predictedTtftUs, tbtOf, ttftOf } from '../metrics/predictions.ts';

type Placement = RequestTrace['placements'][number];

/**
 * @param id from the response body, or from its header x-request-id if the client sent none
 * @throws ApiError 404 for an unknown id, and for a request of another caller unless the caller is an admin
 */
export function describeRequest(id: string, cluster: ClusterView, choicesMax: number, caller: Caller): object {
  const requestId = requestIdOf(id);
  const choices: object[] = [];
  for (let index = 0; index < choicesMax; index++) {
    const trace = cluster.requestTrace(`${requestId}-${index}`);
    const isOwn = caller.role === 'admin' || (trace?.tenant ?? '') === caller.name;
    if (trace !== undefined && isOwn) choices.push(describeChoice(index, trace));
  }
  if (choices.length === 0)
    throw new ApiError(
      404,
      `Cannot find request '${oneLine(id, 128)}': it was never received, or its record has been discarded`,
      {
        code: 'request_not_found',
      },
    );
  return { id: requestId, object: 'kvasir.request', choices };
}

function describeChoice(index: number, trace: RequestTrace): object {
  const { submittedUs, end, blocks, placements } = trace;
  const after = (us: number | undefined) => (us === undefined ? null : ms(us - submittedUs));
  return {
    index,
    state: trace.state,
    priority: trace.priority,
    batch: trace.batch,
    slo_class: trace.sloClass ?? null,
    prompt_tokens: trace.promptTokens,
    cached_tokens: trace.cachedTokens ?? null,
    output_tokens: trace.outputTokens,
    max_tokens: trace.maxTokens,
    ttft_ms: describeOutcome(ttftOf(trace)),
    tbt_ms: describeOutcome(tbtOf(trace)),
    at_ms: {
      started: after(trace.startedUs),
      prefilled: after(trace.prefilledUs),
      first_token: after(trace.firstTokenUs),
      last_token: after(trace.lastTokenUs),
      ended: after(trace.endedUs),
    },
    blocks: blocks === undefined ? null : describeBlocks(blocks),
    placements: placements.map(describePlacement),
    finish_reason: end?.kind === 'finished' ? end.reason : null,
    failure: end?.kind === 'failed' ? describeFailure(end) : null,
  };
}

function describeFailure({ code, message, cause }: Extract<RequestTrace['end'], { kind: 'failed' }>): object {
  return {
    code: code.toLowerCase(),
    message,
    refusal: cause === undefined ? null : describeCause(cause),
  };
}

function describeBlocks({ hits, neverSeen, ...rest }: NonNullable<RequestTrace['blocks']>): object {
  return { hits, misses: { never_seen: neverSeen, ...rest } };
}

function describePlacement(placement: Placement): object {
  const {
    candidates: considered,
    instance,
    decodeAt,
    group,
    fetchedFrom,
    fetchedTokens,
    inline,
    waitUs,
    prefillUs,
  } = placement;
  const { predicted } = placement;
  return {
    instance: instance ?? null,
    decode_at: decodeAt ?? null,
    group: group ?? null,
    fetched: fetchedFrom === undefined ? null : { from: fetchedFrom, tokens: fetchedTokens },
    inline,
    predicted: {
      ttft_ms: msOr(predictedTtftUs(placement)),
      wait_ms: msOr(waitUs),
      prefill_ms: msOr(prefillUs),
      tbt_ms: msOr(predicted?.tbtUs),
      output_tokens: predicted?.outputTokens ?? null,
      decode_load: predicted?.decodeLoad ?? null,
    },
    considered: considered.map((candidate) => ({
      instance: candidate.instance,
      requests: candidate.requests,
      matched_tokens: candidate.matchedTokens,
      queue_ms: ms(candidate.queueUs),
      prefill_ms: ms(candidate.prefillUs),
      ttft_ms: ms(candidate.queueUs + candidate.prefillUs),
    })),
  };
}

function describeOutcome({ predictedUs, actualUs }: Outcome): object {
  return { predicted: msOr(predictedUs), actual: msOr(actualUs) };
}

function msOr(us: number | undefined): number | null {
  return us === undefined ? null : ms(us);
}

function ms(us: number): number {
  return Math.round(us) / 1000;
}
