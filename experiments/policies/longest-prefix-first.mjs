// Longest prefix first, as SGLang's `lpm`: of the waiting requests the one with the most cached tokens starts first, before
// its prefix is evicted. A request that has waited for long goes before all others, so that none starves.

const waitUsMax = 10_000_000;

/** @type {import('kvasir/policy').BatchingPolicy} */
export const batching = ({ nowUs, queuedUs, promptTokens, uncachedTokens }) =>
  nowUs - queuedUs > waitUsMax ? Number.NEGATIVE_INFINITY : uncachedTokens - promptTokens;
