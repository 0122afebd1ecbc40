// Timelines as Chrome traces: JSON for chrome://tracing and Perfetto, one line per event.

type Args = Readonly<Record<string, number | string>>;

/** An interval on one row. */
export interface TimelineEvent {
  readonly name: string;
  readonly row: number;
  readonly startUs: number;
  readonly durationUs: number;
  readonly args: Args;
}

/** An interval that may overlap others of its group, with phases inside it. */
export interface TimelineSpan {
  readonly group: 'transfers' | 'requests';
  readonly name: string;
  /** Unique in its group. */
  readonly id: string;
  readonly startUs: number;
  readonly endUs: number;
  readonly args: Args;
  readonly phases: readonly { readonly name: string; readonly startUs: number; readonly endUs: number }[];
}

/** An arrow from one row to the next event of another. */
export interface TimelineArrow {
  readonly name: string;
  readonly id: string;
  readonly from: { readonly row: number; readonly us: number };
  readonly to: { readonly row: number; readonly us: number };
}

const rowsProcess = 0;
const processes = { transfers: 1, requests: 2 } as const;

/** The text before all events: names of the rows. */
export function timelineStart(rows: readonly string[]): string {
  const named = Object.entries({ instances: rowsProcess, ...processes }).map(([name, pid]) =>
    JSON.stringify({ name: 'process_name', ph: 'M', pid, args: { name } }),
  );
  const names = rows.map((name, row) =>
    JSON.stringify({ name: 'thread_name', ph: 'M', pid: rowsProcess, tid: row, args: { name } }),
  );
  const order = rows.map((_, row) =>
    JSON.stringify({ name: 'thread_sort_index', ph: 'M', pid: rowsProcess, tid: row, args: { sort_index: row } }),
  );
  return `{"displayTimeUnit":"ms","traceEvents":[\n${[...named, ...names, ...order].join(',\n')}`;
}

export function timelineEvent({ name, row, startUs, durationUs, args }: TimelineEvent): string {
  return line({ name, ph: 'X', pid: rowsProcess, tid: row, ts: startUs, dur: durationUs, args });
}

export function timelineSpan({ group, name, id, startUs, endUs, args, phases }: TimelineSpan): string {
  const common = { cat: group, id, pid: processes[group], tid: 0 };
  const inner = phases.flatMap((phase) => [
    line({ name: phase.name, ph: 'b', ...common, ts: phase.startUs }),
    line({ name: phase.name, ph: 'e', ...common, ts: phase.endUs }),
  ]);
  const begin = line({ name, ph: 'b', ...common, ts: startUs, args });
  return [begin, ...inner, line({ name, ph: 'e', ...common, ts: endUs })].join('');
}

export function timelineArrow({ name, id, from, to }: TimelineArrow): string {
  const common = { name, cat: 'flow', id, pid: rowsProcess };
  const begin = line({ ...common, ph: 's', tid: from.row, ts: from.us });
  return begin + line({ ...common, ph: 'f', tid: to.row, ts: to.us });
}

function line(event: object): string {
  return `,\n${JSON.stringify(event)}`;
}

export const timelineEnd = '\n]}\n';
