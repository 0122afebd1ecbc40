// A load sent over HTTP at its times: prompts of token ids, of which those of equal block ids are equal.
import { setTimeout as sleep } from 'node:timers/promises';
import type { TraceRequest } from '../../trace/request.ts';
import { scramble } from '../../util/scramble.ts';
import { pageTokens } from '../../util/step.ts';
import { type Endpoint, timedCompletion } from '../http/client.ts';

/** Ids below this exist in every vocabulary; the first ones are often special. */
const [idsFrom, idsUpTo] = [16, 256];

/** Resolves with the number of complete answers when all requests have ended. */
export async function sendLoad(endpoint: Endpoint, requests: readonly TraceRequest[]): Promise<number> {
  const start = performance.now();
  const answers: ReturnType<typeof timedCompletion>[] = [];
  for (const request of requests) {
    const leftMs = start + request.arrivalUs / 1000 - performance.now();
    if (leftMs > 0) await sleep(leftMs);
    answers.push(timedCompletion(endpoint, { prompt: promptOf(request), maxTokens: request.outputTokens }));
  }
  return (await Promise.all(answers)).filter(({ complete }) => complete).length;
}

function promptOf({ index, inputTokens, blocks }: TraceRequest): readonly number[] {
  return Array.from({ length: inputTokens }, (_, i) => {
    const block = blocks.length === 0 ? index : blocks[Math.floor(i / pageTokens)];
    return idsFrom + ((scramble(scramble(block) + (i % pageTokens)) >>> 0) % (idsUpTo - idsFrom));
  });
}
