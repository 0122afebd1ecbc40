// Request traces: attempts, ends, and how many the log keeps.

import { describe, expect, it } from 'vitest';
import type { PlacementTrace } from '../../../src/core/protocol/request-trace.ts';
import { RequestLog } from '../../../src/core/router/request-log.ts';
import { request } from '../instance-world.ts';

const placed: PlacementTrace = {
  atUs: 10,
  candidates: [{ instance: 1, requests: 2, matchedTokens: 32, queueUs: 5, prefillUs: 7 }],
  ...{ instance: 1, decodeAt: undefined, group: undefined, fetchedFrom: undefined, fetchedTokens: 0, inline: false },
  ...{ waitUs: 5, prefillUs: 7, predicted: undefined },
};

describe('RequestLog', () => {
  it('follows a request over its attempts to its end', () => {
    const log = new RequestLog(4);
    log.submitted(10, request('a', [1, 2, 3]));
    log.record(10, { kind: 'placed', id: 'a', placement: placed });
    expect(log.find('a')).toMatchObject({ state: 'queued', promptTokens: 3, placements: [placed], submittedUs: 10 });
    log.record(20, { kind: 'emit', id: 'a', event: { kind: 'started', cachedTokens: 2 } });
    log.record(20, { kind: 'found', id: 'a', blocks: { hits: 1, neverSeen: 0, evicted: 0, elsewhere: 0, partial: 1 } });
    log.prefilled(25, 'a');
    log.record(30, { kind: 'placed', id: 'a~2', placement: { ...placed, instance: 0 } });
    const tokens = { kind: 'tokens', tokens: Int32Array.of(7, 8), logprobs: undefined } as const;
    log.record(40, { kind: 'emit', id: 'a', event: tokens });
    log.record(50, { kind: 'emit', id: 'a', event: tokens });
    log.record(50, { kind: 'emit', id: 'a', event: { kind: 'finished', reason: 'length' } });
    expect(log.find('a')).toMatchObject({
      ...{ state: 'finished', outputTokens: 4, cachedTokens: 2, blocks: { hits: 1, partial: 1 } },
      ...{ startedUs: 20, prefilledUs: 25, firstTokenUs: 40, lastTokenUs: 50, endedUs: 50 },
      ...{ placements: [placed, { instance: 0 }], end: { kind: 'finished', reason: 'length' } },
    });
  });

  it('accepts a start that its tokens have overtaken', () => {
    const log = new RequestLog(4);
    log.submitted(10, request('a', [1, 2, 3]));
    log.record(40, { kind: 'emit', id: 'a', event: { kind: 'tokens', tokens: Int32Array.of(7), logprobs: undefined } });
    log.record(45, { kind: 'emit', id: 'a', event: { kind: 'started', cachedTokens: 2 } });
    expect(log.find('a')).toMatchObject({ state: 'decode', cachedTokens: 2, startedUs: 40, firstTokenUs: 40 });
  });

  it('distinguishes refusals, failures and cancels', () => {
    const log = new RequestLog(4);
    const failed = { kind: 'failed', code: 'KV_OVERLOADED', message: 'Cannot', retryAfterMs: 1 } as const;
    for (const id of ['refused', 'failed', 'left']) log.submitted(0, request(id, [1]));
    const cause = { reason: 'ttft', at: 'prefill', predictedUs: 2e6, mostUs: 1e6 } as const;
    log.record(1, { kind: 'emit', id: 'refused', event: { ...failed, cause } });
    log.record(1, { kind: 'emit', id: 'failed', event: failed });
    log.cancelled(2, 'left');
    expect(['refused', 'failed', 'left'].map((id) => log.find(id)?.state)).toEqual(['refused', 'failed', 'cancelled']);
  });

  it('drops the requests that ended first, and no running one', () => {
    const log = new RequestLog(2);
    const ids = ['a', 'b', 'c', 'd'];
    for (const id of ids) log.submitted(0, request(id, [1]));
    for (const id of ['c', 'a', 'd']) log.cancelled(1, id);
    expect(ids.filter((id) => log.find(id) !== undefined)).toEqual(['a', 'b', 'd']);
  });
});
