// Requests as rows of the dashboard: times, the parts of their time line, and the reasons of their placements.
import type { RequestTrace, StepTrace } from '../../core/protocol/request-trace.ts';
import { tbtOf, ttftOf } from '../metrics/predictions.ts';
import { placementReason } from './placement-reason.ts';

type PartKind = 'queue' | 'fetch' | 'prefill' | 'hand-off' | 'decode';

/** Milliseconds since the submission; an end of null: still running. Tokens computed or fetched. */
type Part = readonly [kind: PartKind, from: number, to: number | null, instance: number | null, tokens: number];

export interface RequestRow {
  readonly id: string;
  readonly state: RequestTrace['state'];
  /** SLO class; empty: none. */
  readonly class: string;
  readonly tenant: string;
  readonly batch: boolean;
  readonly prompt_tokens: number;
  readonly cached_tokens: number | null;
  readonly output_tokens: number;
  /** On the clock of the frame's `now_ms`. */
  readonly submitted_ms: number;
  readonly ended_ms: number | null;
  readonly instance: number | null;
  readonly decode_at: number | null;
  readonly ttft_ms: Outcome;
  readonly tbt_ms: Outcome;
  readonly parts: readonly Part[];
  /** One for each attempt. */
  readonly placements: readonly string[];
  /** Blocks of the prompt: hits, and misses by reason; null: not known yet. */
  readonly blocks: Readonly<Record<'hits' | 'never_seen' | 'evicted' | 'elsewhere' | 'partial', number>> | null;
  readonly end: string | null;
}

type Outcome = readonly [predicted: number | null, actual: number | null];

export interface RowContext {
  /** Start of the traces' clock in microseconds since 1970: steps have such times. */
  readonly originUs: number;
  /** Name of an instance. */
  place(instance: number): string;
}

/** Chunks that are shown apart; the chunks of longer prompts are joined. */
const chunksMax = 24;

export function requestRow(trace: RequestTrace, context: RowContext): RequestRow {
  const { placements, blocks, submittedUs, endedUs } = trace;
  const last = placements.at(-1);
  return {
    id: trace.id,
    state: trace.state,
    class: trace.sloClass ?? '',
    tenant: trace.tenant ?? '',
    batch: trace.batch,
    prompt_tokens: trace.promptTokens,
    cached_tokens: trace.cachedTokens ?? null,
    output_tokens: trace.outputTokens,
    submitted_ms: ms(submittedUs),
    ended_ms: msOr(endedUs),
    instance: last?.instance ?? null,
    decode_at: last?.decodeAt ?? null,
    ttft_ms: outcome(ttftOf(trace)),
    tbt_ms: outcome(tbtOf(trace)),
    parts: partsOf(trace, context),
    placements: placements.map((placement) => placementReason(placement, context.place)),
    blocks: blocks === undefined ? null : { ...shares(blocks), never_seen: blocks.neverSeen },
    end: describeEnd(trace),
  };
}

function shares({ hits, evicted, elsewhere, partial }: NonNullable<RequestTrace['blocks']>) {
  return { hits, evicted, elsewhere, partial };
}

function describeEnd({ end, state }: RequestTrace): string | null {
  if (end === undefined) return state === 'cancelled' ? 'cancelled' : null;
  return end.kind === 'finished' ? end.reason : `${end.cause?.reason ?? end.code.toLowerCase()}: ${end.message}`;
}

/** Each attempt has the parts that its steps show; the times of the trace fill in what steps do not. */
function partsOf(trace: RequestTrace, { originUs }: RowContext): readonly Part[] {
  const { submittedUs, startedUs, prefilledUs, firstTokenUs, lastTokenUs, endedUs, placements } = trace;
  const last = placements.at(-1);
  const since = (us: number) => Math.max(0, ms(us - submittedUs));
  const endOf = (us: number | undefined) =>
    us === undefined ? (endedUs === undefined ? null : since(endedUs)) : since(us);
  const at = last?.instance ?? null;
  const parts: Part[] = [['queue', 0, endOf(startedUs ?? firstTokenUs), at, 0]];
  const fetches = trace.steps.filter(({ kind }) => kind === 'fetch');
  for (const { startedUs: from, endedUs: to, instance, rows } of fetches)
    parts.push(['fetch', since(from - originUs), since(to - originUs), instance, rows]);
  const chunks = joined(trace.steps.filter(({ kind, from }) => kind === 'step' && from < trace.promptTokens));
  for (const { startedUs: from, endedUs: to, instance, rows } of chunks)
    parts.push(['prefill', since(from - originUs), since(to - originUs), instance, rows]);
  if (chunks.length === 0 && startedUs !== undefined)
    parts.push([
      'prefill',
      since(startedUs),
      endOf(prefilledUs ?? firstTokenUs),
      at,
      trace.promptTokens - (trace.cachedTokens ?? 0),
    ]);
  const decodeAt = last?.decodeAt ?? at;
  if (prefilledUs !== undefined && (firstTokenUs ?? prefilledUs + 1) > prefilledUs)
    parts.push(['hand-off', since(prefilledUs), endOf(firstTokenUs), decodeAt, trace.promptTokens]);
  if (firstTokenUs !== undefined)
    parts.push([
      'decode',
      since(firstTokenUs),
      endOf(endedUs === undefined ? undefined : lastTokenUs),
      decodeAt,
      trace.outputTokens,
    ]);
  return parts;
}

/** At most `chunksMax` steps: neighbours become one. */
function joined(steps: readonly StepTrace[]): readonly StepTrace[] {
  if (steps.length <= chunksMax) return steps;
  const each = Math.ceil(steps.length / chunksMax);
  const groups = Array.from({ length: Math.ceil(steps.length / each) }, (_, i) =>
    steps.slice(i * each, (i + 1) * each),
  );
  return groups.flatMap((group) => {
    const [first] = group;
    const end = group.at(-1);
    if (first === undefined || end === undefined) return [];
    return [{ ...first, endedUs: end.endedUs, rows: group.reduce((sum, { rows }) => sum + rows, 0) }];
  });
}

function outcome({
  predictedUs,
  actualUs,
}: {
  predictedUs: number | undefined;
  actualUs: number | undefined;
}): Outcome {
  return [msOr(predictedUs), msOr(actualUs)];
}

function msOr(us: number | undefined): number | null {
  return us === undefined ? null : ms(us);
}

function ms(us: number): number {
  return Math.round(us) / 1000;
}
