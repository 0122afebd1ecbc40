// Requests and pages as a Chrome trace, for Perfetto: a process for each instance, and one for what waits.

/** The process of requests without an instance. */
const noInstance = 0;

export function perfettoTrace({ frame, instances, requests, recording }) {
  const { now_ms } = frame;
  const events = [{ name: 'process_name', ph: 'M', pid: noInstance, args: { name: 'not placed' } }];
  for (const [i, { name }] of instances.entries())
    events.push({ name: 'process_name', ph: 'M', pid: i + 1, args: { name } });
  const lanes = new Lanes();
  for (const row of requests.toReversed()) addRequest(events, lanes, row, now_ms);
  for (const { now_ms: at, columns, instances: rows } of recording.frames) {
    const column = (name) => columns.indexOf(name);
    const [used, cached, running, waiting] = ['used', 'cached', 'running', 'waiting'].map(column);
    for (const [i, row] of rows.entries()) {
      const common = { ph: 'C', pid: i + 1, ts: 1000 * at };
      events.push({ ...common, name: 'pages', args: { used: row[used], cached: row[cached] } });
      events.push({ ...common, name: 'requests', args: { running: row[running], waiting: row[waiting] } });
    }
  }
  return { displayTimeUnit: 'ms', traceEvents: events };
}

/** Threads of a process, so that parts of two requests do not overlap on one. */
class Lanes {
  #ends = new Map();

  /** The first lane of the process that is free from then on, which is taken until `to`. */
  take(pid, from, to) {
    const ends = this.#ends.get(pid) ?? [];
    this.#ends.set(pid, ends);
    const free = ends.findIndex((end) => end <= from);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = to;
    return lane + 1;
  }
}

function addRequest(events, lanes, row, now) {
  const { id, submitted_ms, placements, ttft_ms, tbt_ms, blocks, parts } = row;
  const byProcess = Map.groupBy(parts, ([, , , instance]) => (instance === null ? noInstance : instance + 1));
  const us = (ms) => Math.round(1000 * (submitted_ms + ms));
  for (const [pid, own] of byProcess) {
    const ends = own.map(([, , to]) => to ?? Math.max(0, now - submitted_ms));
    const tid = lanes.take(pid, us(own[0][1]), us(Math.max(...ends)));
    for (const [i, [kind, from, , , tokens]] of own.entries()) {
      const args = { request: id, tokens, ...(kind === 'queue' && { placements, ttft_ms, tbt_ms, blocks }) };
      events.push({
        name: kind,
        cat: 'request',
        ph: 'X',
        pid,
        tid,
        ts: us(from),
        dur: Math.max(1, us(ends[i]) - us(from)),
        args,
      });
    }
  }
}
