// The rotation of batches over model replicas as one SVG: a timeline of replicas and attention workers for each number
// of batches.
import {
  checkTimeline,
  idleTimes,
  replicasFor,
  rotation,
  type Span,
  timelineOf,
} from '../../core/attention-workers/rotation.ts';

/** A rotation whose attention takes a replica's share of a slice, t_a = t_m / (n - 1). */
export interface RotationReport {
  readonly batches: number;
  readonly replicas: number;
  /** Bytes of carried context that move between replicas in a step, for each token of a batch. */
  readonly movedBytesPerToken: number;
  /** Rows of the timeline, with the part of the steady state in which each is idle. */
  readonly rows: readonly { readonly name: string; readonly idle: number; readonly spans: readonly Span[] }[];
}

/** Time of one slice, in pixels and in parts: a multiple of every number of replicas that is drawn. */
const [sliceWidth, sliceTime] = [120, 2520];
const slicesShown = 6;
const timeShown = slicesShown * sliceTime;
const [left, top, rowHeight, barHeight] = [150, 64, 34, 26];
const width = left + slicesShown * sliceWidth + 20;
const colours = ['#0969da', '#1a7f37', '#bc4c00', '#8250df', '#cf222e', '#1b7c83', '#6e5494', '#57606a'];

export function rotationReport(batches: number, slices: number, movedBytesPerToken: number): RotationReport {
  const replicas = replicasFor(batches);
  const timeline = timelineOf(rotation(batches, slices), sliceTime, sliceTime / replicas);
  checkTimeline(timeline, batches, slices);
  // From the second slice of the last batch to the last slice of the first.
  const starts = timeline.replicas.flat();
  const startOf = (batch: number, slice: number) =>
    starts.find((span) => span.batch === batch && span.slice === slice)?.start ?? 0;
  const [from, to] = [startOf(batches - 1, 1), startOf(0, slices - 1)];
  const idle = idleTimes(timeline, from, to);
  const ratio = (time: number) => (to > from ? time / (to - from) : 0);
  const rows = timeline.replicas.map((spans, i) => ({
    name: `Model replica ${i + 1}`,
    idle: ratio(idle.replicas[i]),
    spans,
  }));
  const attention = { name: 'Attention workers', idle: ratio(idle.attention), spans: timeline.attention };
  return { batches, replicas, movedBytesPerToken, rows: [...rows, attention] };
}

export function rotationSvg(title: string, reports: readonly RotationReport[]): string {
  let y = top;
  const panels = reports.map((report) => {
    const panel = drawPanel(report, y);
    y += (report.rows.length + 2) * rowHeight;
    return panel;
  });
  const height = y;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="ui-monospace, monospace" font-size="11" fill="#24292f">`,
    `<title>${title}</title>`,
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    text(20, 22, title, 'font-size="14" font-weight="bold"'),
    text(20, 42, 'j.k: slice k of batch j, and below the attention after it; t_a = t_m / (n - 1)'),
    ...panels.flat(),
    '</svg>',
  ].join('\n');
}

function drawPanel({ batches, replicas, movedBytesPerToken, rows }: RotationReport, y: number): readonly string[] {
  const noun = replicas === 1 ? 'replica' : 'replicas';
  const caption = `n = ${batches}: ${batches} batches on ${replicas} ${noun}, ${movedBytesPerToken} bytes per token move between them`;
  return [
    text(20, y + 18, caption, 'font-weight="bold"'),
    ...rows.flatMap((row, i) => drawRow(row, y + (i + 1) * rowHeight)),
    axis(y + (rows.length + 1) * rowHeight),
  ];
}

function drawRow({ name, spans }: RotationReport['rows'][number], y: number): readonly string[] {
  return [
    text(20, y + 17, name),
    `<rect x="${left}" y="${y}" width="${slicesShown * sliceWidth}" height="${barHeight}" fill="#f6f8fa"/>`,
    ...spans.filter(({ start }) => start < timeShown).map((span) => drawSpan(span, y)),
  ];
}

function drawSpan({ batch, slice, start, end }: Span, y: number): string {
  const [x, length] = [start, Math.min(end, timeShown) - start].map((time) => (time / sliceTime) * sliceWidth);
  const isCut = end > timeShown;
  const name = isCut ? '' : `${batch + 1}.${slice}`;
  const label = text(left + x + length / 2, y + 17, name, 'fill="#fff" text-anchor="middle"');
  const colour = colours[batch % colours.length];
  return `<rect x="${left + x + 0.5}" y="${y}" width="${length - 1}" height="${barHeight}" rx="3" fill="${colour}"/>${label}`;
}

/** Marks of whole slice times. */
function axis(y: number): string {
  const marks = Array.from({ length: slicesShown + 1 }, (_, i) =>
    text(left + i * sliceWidth, y + 8, i === 0 ? '0' : `${i} t_m`, 'fill="#57606a" text-anchor="middle"'),
  );
  return marks.join('');
}

function text(x: number, y: number, content: string, style = ''): string {
  return `<text x="${x}" y="${y}" ${style}>${content}</text>`;
}
