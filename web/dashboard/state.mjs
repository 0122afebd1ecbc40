// What the page shows: the current frame, requests by id, and earlier frames for rates and recordings.

/** Requests kept, samples of the plots, and characters of the frames that a recording has. */
const [requestsMax, samplesMax, recordedMax] = [1000, 600, 24e6];
/** Rates are means over this time. */
const rateMs = 5000;

export class State {
  frame;
  /** Objects by the columns of the frame. */
  instances = [];
  /** The latest submission first. */
  requests = [];
  /** Percentiles by class over time. */
  samples = [];
  #byId = new Map();
  #frames = [];
  #recorded = 0;

  /** @param size characters of the frame; 0: it is not kept */
  add(frame, size) {
    this.show(frame);
    for (const row of frame.requests) this.#byId.set(row.id, row);
    for (const id of this.#byId.keys()) {
      if (this.#byId.size <= requestsMax) break;
      this.#byId.delete(id);
    }
    this.requests = byTime([...this.#byId.values()]);
    if (size === 0) return;
    this.#frames.push({ ...frame, requests: [] });
    this.#recorded += size;
    // A long recording has fewer frames a second.
    while (this.#recorded > recordedMax) {
      this.#frames = this.#frames.filter((_, i) => i % 2 === 1);
      this.#recorded /= 2;
    }
  }

  /** A frame of a recording, with the requests that were submitted until then. */
  seek(frames, at, requests) {
    this.#frames = frames;
    this.samples = [];
    for (const frame of frames.slice(Math.max(0, at - samplesMax), at + 1)) this.show(frame);
    this.requests = byTime(requests.filter(({ submitted_ms }) => submitted_ms <= frames[at].now_ms));
  }

  show(frame) {
    this.frame = frame;
    this.instances = frame.instances.map((row) => Object.fromEntries(frame.columns.map((name, i) => [name, row[i]])));
    this.samples.push({ seconds: frame.at_ms / 1000, classes: frame.classes });
    if (this.samples.length > samplesMax) this.samples.shift();
  }

  get recording() {
    return { object: 'kvasir.dashboard.recording', frames: this.#frames, requests: this.requests };
  }

  get now() {
    return this.frame.now_ms;
  }

  /** The frame that is about five seconds older, for rates; the current one if there is none. */
  get before() {
    const at = this.frame.at_ms - rateMs;
    return this.#frames.findLast(({ at_ms }) => at_ms <= at) ?? this.#frames[0] ?? this.frame;
  }

  /** The sum of a column over all instances, a second. */
  rate(column) {
    const { before, frame } = this;
    const seconds = (frame.at_ms - before.at_ms) / 1000;
    if (!(seconds > 0)) return 0;
    return Math.max(0, sumOf(frame, column) - sumOf(before, column)) / seconds;
  }

  name(instance) {
    return this.instances[instance]?.name ?? `instance ${instance}`;
  }
}

export function sumOf({ columns, instances }, column) {
  const at = columns.indexOf(column);
  return instances.reduce((sum, row) => sum + row[at], 0);
}

const byTime = (rows) => rows.sort((a, b) => b.submitted_ms - a.submitted_ms);
