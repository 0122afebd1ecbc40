// Timelines as Chrome traces: JSON for chrome://tracing and Perfetto, one line per event.

/** An interval on one row. */
export interface TimelineEvent {
  readonly name: string;
  readonly row: number;
  readonly startUs: number;
  readonly durationUs: number;
  readonly args: Readonly<Record<string, number | string>>;
}

/** The text before all events: names of the rows. */
export function timelineStart(rows: readonly string[]): string {
  const names = rows.map((name, row) =>
    JSON.stringify({ name: 'thread_name', ph: 'M', pid: 0, tid: row, args: { name } }),
  );
  const order = rows.map((_, row) =>
    JSON.stringify({ name: 'thread_sort_index', ph: 'M', pid: 0, tid: row, args: { sort_index: row } }),
  );
  return `{"displayTimeUnit":"ms","traceEvents":[\n${[...names, ...order].join(',\n')}`;
}

export function timelineEvent({ name, row, startUs, durationUs, args }: TimelineEvent): string {
  const event = { name, ph: 'X', pid: 0, tid: row, ts: startUs, dur: durationUs, args };
  return `,\n${JSON.stringify(event)}`;
}

export const timelineEnd = '\n]}\n';
