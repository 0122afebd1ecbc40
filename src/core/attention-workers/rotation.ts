// Rotational staggered pipelining: which batch's slice runs on which model replica, and after what (Lamina, section 4.3).

/** Slice `slice` of batch `batch` runs on model replica `replica`. */
export interface SliceTurn {
  readonly batch: number;
  readonly slice: number;
  readonly replica: number;
}

/** Model replicas of `batches` batches: one less, since one batch is always at the attention workers. */
export function replicasFor(batches: number): number {
  return Math.max(1, batches - 1);
}

/**
 * The turns of one step in the order of their starts. With n batches on n - 1 replicas, slice k of batch j is turn
 * k n + j on replica (j + k) mod (n - 1). A replica runs its turns in this order. A turn starts when the replica's turn
 * before it and the attention of the batch's slice before it have ended.
 */
export function rotation(batches: number, slices: number, replicas = replicasFor(batches)): readonly SliceTurn[] {
  return Array.from({ length: batches * slices }, (_, turn) => ({
    batch: turn % batches,
    slice: Math.floor(turn / batches),
    replica: turn % replicas,
  }));
}

/** A slice or the attention after it, in time. */
export interface Span {
  readonly batch: number;
  readonly slice: number;
  readonly start: number;
  readonly end: number;
}

export interface RotationTimeline {
  /** Of each replica, in order of time. */
  readonly replicas: readonly (readonly Span[])[];
  /** Attention of all batches; every attention worker computes its share of each span. */
  readonly attention: readonly Span[];
}

/**
 * The turns in time. @param slice time of a slice on a replica @param attention time of the attention after a slice at
 * the attention workers, which serve one batch at a time; the last slice has none
 */
export function timelineOf(turns: readonly SliceTurn[], slice: number, attention: number): RotationTimeline {
  const replicas: Span[][] = Array.from({ length: 1 + Math.max(...turns.map(({ replica }) => replica)) }, () => []);
  const last = Math.max(...turns.map((turn) => turn.slice));
  const ready = new Map<number, number>();
  const calls: Span[] = [];
  let attentionEnd = 0;
  for (const { batch, slice: index, replica } of turns) {
    const spans = replicas[replica];
    const start = Math.max(spans.at(-1)?.end ?? startOf(batch, slice, replicas.length), ready.get(batch) ?? 0);
    const end = start + slice;
    spans.push({ batch, slice: index, start, end });
    if (index === last) continue;
    const call = Math.max(end, attentionEnd);
    attentionEnd = call + attention;
    ready.set(batch, attentionEnd);
    calls.push({ batch, slice: index, start: call, end: attentionEnd });
  }
  return { replicas, attention: calls };
}

/** The first slices of the batches start a replica's share of a slice apart. */
function startOf(batch: number, slice: number, replicas: number): number {
  return (batch * slice) / replicas;
}

/** Bytes of carried context that move between replicas in a step: `bytes[k]` follow slice k of each batch. */
export function movedBytes(turns: readonly SliceTurn[], bytes: readonly number[]): number {
  const at = new Map<number, SliceTurn>();
  let moved = 0;
  for (const turn of turns) {
    const before = at.get(turn.batch);
    if (before !== undefined && before.replica !== turn.replica) moved += bytes[before.slice] ?? 0;
    at.set(turn.batch, turn);
  }
  return moved;
}

/** Throws unless each batch runs each of its slices once, in order, and no replica runs two batches at once. */
export function checkTimeline({ replicas, attention }: RotationTimeline, batches: number, slices: number): void {
  for (const [replica, spans] of replicas.entries())
    for (const [i, span] of spans.entries())
      if (i > 0 && span.start < spans[i - 1].end)
        throw new Error(
          `Rotation broken: replica ${replica} runs batches ${spans[i - 1].batch} and ${span.batch} at once`,
        );
  const all = replicas.flat();
  for (let batch = 0; batch < batches; batch++) {
    const own = all.filter((span) => span.batch === batch).sort((a, b) => a.slice - b.slice);
    for (let slice = 0; slice < slices; slice++) {
      const span = own[slice];
      if (span?.slice !== slice || own.length !== slices)
        throw new Error(`Rotation broken: batch ${batch} does not run each of its ${slices} slices once`);
      const call = attention.find((each) => each.batch === batch && each.slice === slice - 1);
      if (slice > 0 && (call === undefined || span.start < call.end || call.start < own[slice - 1].end))
        throw new Error(`Rotation broken: slice ${slice} of batch ${batch} does not follow its attention`);
    }
  }
}

/** Idle time of each replica and of the attention workers between `from` and `to`. */
export function idleTimes({ replicas, attention }: RotationTimeline, from: number, to: number) {
  const idle = (spans: readonly Span[]): number =>
    to - from - spans.reduce((sum, { start, end }) => sum + Math.max(0, Math.min(end, to) - Math.max(start, from)), 0);
  return { replicas: replicas.map(idle), attention: idle(attention) };
}
