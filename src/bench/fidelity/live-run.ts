// A trace served live: requests arrive at the times of the trace, and client observations are recorded.
import { setTimeout as sleep } from 'node:timers/promises';
import type { ClusterPort, GenerationRequest, InferencePort } from '../../core/protocol/ports.ts';
import type { PlacementTrace } from '../../core/protocol/request-trace.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { scramble } from '../../util/scramble.ts';
import { pageTokens } from '../../util/step.ts';
import { greedyRequest } from '../requests.ts';

export interface Served {
  readonly index: number;
  /** From the start of the run, and by the clock of step records. */
  readonly arrivalUs: number;
  readonly clockUs: number;
  readonly inputTokens: number;
  readonly cachedTokens: number;
  /** The trace of its placement. */
  readonly placed: PlacementTrace | undefined;
  readonly startedUs: number;
  readonly ttftUs: number;
  readonly gapUs: Float64Array;
}

/** Requests in the order of their ends. @throws Error if one fails */
export async function serveTrace(
  port: InferencePort & ClusterPort,
  requests: readonly TraceRequest[],
  { vocabSize, salt }: { readonly vocabSize: number; readonly salt: string },
): Promise<readonly Served[]> {
  const start = performance.now();
  const served: Promise<Served>[] = [];
  for (const trace of requests) {
    const leftMs = start + trace.arrivalUs / 1000 - performance.now();
    if (leftMs > 0) await sleep(leftMs);
    served.push(serve(port, requestOf(trace, vocabSize, salt), trace, start));
  }
  return Promise.all(served);
}

function serve(
  port: InferencePort & ClusterPort,
  request: GenerationRequest,
  { index }: TraceRequest,
  start: number,
): Promise<Served> {
  const arrival = performance.now();
  const sinceUs = (): number => Math.round((performance.now() - arrival) * 1000);
  let [cachedTokens, startedUs] = [0, 0];
  const tokenUs: number[] = [];
  return new Promise((resolve, reject) => {
    port.submit(request, (event) => {
      if (event.kind === 'started') [cachedTokens, startedUs] = [event.cachedTokens, sinceUs()];
      else if (event.kind === 'tokens') tokenUs.push(sinceUs());
      else if (event.kind === 'failed') reject(new Error(event.message));
      else if (event.kind === 'finished')
        resolve({
          ...{ index, arrivalUs: Math.round((arrival - start) * 1000), inputTokens: request.prompt.length },
          ...{ clockUs: Math.round((performance.timeOrigin + arrival) * 1000) },
          ...{ cachedTokens, startedUs, ttftUs: tokenUs[0] },
          placed: port.requestTrace(request.id)?.placements[0],
          gapUs: Float64Array.from(tokenUs.slice(1), (us, i) => us - tokenUs[i]),
        });
    });
  });
}

function requestOf(
  { index, inputTokens, outputTokens, blocks }: TraceRequest,
  vocabSize: number,
  salt: string,
): GenerationRequest {
  const prompt = Int32Array.from({ length: inputTokens }, (_, i) => {
    const block = blocks.length === 0 ? index : blocks[Math.floor(i / pageTokens)];
    return (scramble(scramble(block) + (i % pageTokens)) >>> 0) % vocabSize;
  });
  return greedyRequest(`${salt} ${index}`, prompt, outputTokens, salt);
}
