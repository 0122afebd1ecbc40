// The spans of a request from its trace: queue, placement, fetch, each chunk and step, hand-off and decode.

import type { ClusterView } from '../../core/protocol/ports.ts';
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import { ttftOf } from '../metrics/predictions.ts';
import { newId, type TraceContext, traceContext } from './trace-context.ts';

export type AttributeValue = string | number | boolean;

/** Times in microseconds since 1970. */
export interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentId: string | undefined;
  readonly name: string;
  readonly isServer: boolean;
  readonly startedUs: number;
  readonly endedUs: number;
  readonly attributes: Readonly<Record<string, AttributeValue | undefined>>;
  /** The error message, if the span failed. */
  readonly error: string | undefined;
}

type Part = Pick<Span, 'name' | 'startedUs' | 'endedUs' | 'attributes'>;

/** Receives spans; `OtlpExporter` is one. */
interface SpanSink {
  add(spans: readonly Span[]): void;
}

/** Exports the spans of each request when it ends. */
export function exportTraces(cluster: ClusterView, exporter: SpanSink): void {
  cluster.onEnded((request) => {
    const context = traceContext(request.trace);
    if (context.sampled) exporter.add(requestSpans(request, context, performance.timeOrigin * 1000));
  });
}

/** One span for the request, with child spans. @param originUs origin of the clock of the trace, in microseconds since 1970 */
function requestSpans(trace: RequestTrace, context: TraceContext, originUs: number): readonly Span[] {
  const { end, state, submittedUs, endedUs = submittedUs } = trace;
  const spanId = newId(8);
  const root: Span = {
    traceId: context.traceId,
    spanId,
    parentId: context.parentId,
    name: 'generate',
    isServer: true,
    startedUs: originUs + submittedUs,
    endedUs: originUs + endedUs,
    attributes: attributesOf(trace),
    error: end?.kind === 'failed' ? end.message : state === 'cancelled' ? 'cancelled' : undefined,
  };
  const parts = [...phases(trace, originUs), ...steps(trace)];
  const child = { traceId: context.traceId, parentId: spanId, isServer: false, error: undefined };
  return [root, ...parts.map((part) => ({ ...child, ...part, spanId: newId(8) }))];
}

function attributesOf(trace: RequestTrace): Span['attributes'] {
  const { id, state, batch, sloClass, promptTokens, cachedTokens, outputTokens, placements, blocks } = trace;
  const ttft = ttftOf(trace);
  return {
    'kvasir.request.id': id,
    'kvasir.state': state,
    'kvasir.batch': batch,
    'kvasir.slo_class': sloClass,
    'gen_ai.usage.input_tokens': promptTokens,
    'gen_ai.usage.output_tokens': outputTokens,
    'kvasir.cached_tokens': cachedTokens,
    'kvasir.attempts': placements.length,
    // The name in earlier versions, removed in the next one.
    'kvasir.tries': placements.length,
    'kvasir.ttft.predicted_ms': msOf(ttft.predictedUs),
    'kvasir.ttft.actual_ms': msOf(ttft.actualUs),
    'kvasir.blocks.hits': blocks?.hits,
    'kvasir.blocks.never_seen': blocks?.neverSeen,
    'kvasir.blocks.evicted': blocks?.evicted,
    'kvasir.blocks.elsewhere': blocks?.elsewhere,
    'kvasir.steps.untold': trace.stepsOmitted,
  };
}

function msOf(us: number | undefined): number | undefined {
  return us === undefined ? undefined : us / 1000;
}

/** The stages of the request, in order. */
function phases(trace: RequestTrace, originUs: number): readonly Part[] {
  const { placements, submittedUs, startedUs, prefilledUs, firstTokenUs, lastTokenUs, endedUs } = trace;
  const parts: Part[] = placements.map((placed) => ({
    name: 'placement',
    startedUs: originUs + placed.atUs,
    endedUs: originUs + placed.atUs,
    attributes: {
      'kvasir.instance': placed.instance,
      'kvasir.decode_at': placed.decodeAt,
      'kvasir.considered': placed.candidates.length,
      'kvasir.inline': placed.inline,
      'kvasir.fetch.from': placed.fetchedFrom,
      'kvasir.fetch.tokens': placed.fetchedTokens,
    },
  }));
  const phase = (name: string, from: number | undefined, to: number | undefined): void => {
    if (from === undefined || to === undefined || to < from) return;
    parts.push({ name, startedUs: originUs + from, endedUs: originUs + to, attributes: {} });
  };
  phase('queue', submittedUs, startedUs ?? endedUs);
  phase('prefill', startedUs, prefilledUs ?? firstTokenUs ?? endedUs);
  phase('hand-off', prefilledUs, firstTokenUs ?? endedUs);
  phase('decode', firstTokenUs, lastTokenUs);
  return parts;
}

/** Prefixes fetched from other instances, prompt chunks, and output tokens. */
function steps({ steps, promptTokens }: RequestTrace): readonly Part[] {
  return steps.map(({ kind, instance, startedUs, endedUs, from, rows, aborted }) => ({
    name: kind === 'fetch' ? kind : from < promptTokens ? 'chunk' : 'step',
    startedUs,
    endedUs,
    attributes: {
      'kvasir.instance': instance,
      'kvasir.from_token': from,
      'kvasir.tokens': rows,
      'kvasir.aborted': aborted,
    },
  }));
}
