// Runs the points of a sweep on all cores, and continues an interrupted one.
import { appendFileSync, existsSync, readFileSync, rmSync } from 'node:fs';
import type { ProgressOutput } from '../../serve/model/pull-progress.ts';
import { durationText } from '../simulation-progress.ts';
import { SimulationThreads } from './simulation-threads.ts';
import type { Sweep, SweepPoint } from './sweep-file.ts';
import type { SweepResult } from './sweep-rows.ts';

interface SweepRun {
  /** Results in the order of the points. */
  readonly results: readonly SweepResult[];
  /** Results that an earlier, interrupted sweep has left. */
  readonly continued: number;
}

interface SweepOptions {
  /** Simulations at once; undefined: as many as cores. */
  readonly jobs?: number | undefined;
  /** Keeps the results until `remove`; undefined: an interrupted sweep starts again. */
  readonly journal?: SweepJournal | undefined;
  readonly progress?: SweepProgress | undefined;
  /** Ended with the sweep; undefined: `jobs` threads of its own. */
  readonly threads?: SimulationThreads | undefined;
}

/** A run that fails has an error as its result; the others run on. */
export async function runSweep({ points }: Sweep, options: SweepOptions): Promise<SweepRun> {
  const { jobs, journal, progress } = options;
  const threads = options.threads ?? new SimulationThreads({ size: jobs, startsAtOnce: true });
  const known = journal?.read() ?? new Map<string, SweepResult>();
  let continued = 0;
  progress?.begin(points.length);
  const one = async (point: SweepPoint): Promise<SweepResult> => {
    const earlier = known.get(keyOf(point));
    if (earlier !== undefined) {
      continued++;
      progress?.continued();
      return earlier;
    }
    const result = await threads.run(point.options).then(
      (report) => ({ report }),
      (error: unknown) => ({ error: error instanceof Error ? error.message : String(error) }),
    );
    journal?.add(keyOf(point), result);
    progress?.ended();
    return result;
  };
  try {
    return { results: await Promise.all(points.map(one)), continued };
  } finally {
    progress?.close();
    await threads.close();
  }
}

/** Runs with equal flags have equal results. */
function keyOf({ flags }: SweepPoint): string {
  return JSON.stringify(Object.entries(flags).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** The results of a sweep that has not ended, in a file of JSON lines. */
export class SweepJournal {
  readonly #path: string;
  readonly #version: string;

  /** @param version of the program: results of another one are not continued */
  constructor(path: string, version: string) {
    this.#path = path;
    this.#version = version;
  }

  /** Errors are tried again. The last line may be incomplete. */
  read(): ReadonlyMap<string, SweepResult> {
    const known = new Map<string, SweepResult>();
    if (!existsSync(this.#path)) return known;
    for (const line of readFileSync(this.#path, 'utf8').split('\n')) {
      const entry = parsed(line);
      if (entry?.version === this.#version && entry.result.report !== undefined) known.set(entry.key, entry.result);
    }
    return known;
  }

  add(key: string, result: SweepResult): void {
    appendFileSync(this.#path, `${JSON.stringify({ version: this.#version, key, result })}\n`);
  }

  remove(): void {
    rmSync(this.#path, { force: true });
  }
}

function parsed(line: string) {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

const lineMs = 10_000;

/** A moving line on a terminal, and occasional lines elsewhere. */
export class SweepProgress {
  readonly #output: ProgressOutput;
  readonly #clock: () => number;
  #startedMs = 0;
  #shownMs = 0;
  #total = 0;
  #done = 0;
  #continued = 0;

  constructor(output: ProgressOutput, clock: () => number = () => performance.now()) {
    this.#output = output;
    this.#clock = clock;
  }

  begin(total: number): void {
    this.#total = total;
    this.#startedMs = this.#clock();
    this.#shownMs = this.#startedMs;
  }

  /** A result of an earlier sweep took no time. */
  continued(): void {
    this.#continued++;
  }

  ended(): void {
    this.#done++;
    const nowMs = this.#clock();
    if (this.#output.isTTY !== true && nowMs - this.#shownMs < lineMs) return;
    this.#shownMs = nowMs;
    const left = this.#total - this.#continued - this.#done;
    const seconds = ((nowMs - this.#startedMs) / 1000 / this.#done) * left;
    const text = `Sweeping: ${this.#continued + this.#done} of ${this.#total} runs, ${durationText(seconds)} left`;
    this.#output.write(this.#output.isTTY === true ? `\r${text}\x1b[K` : `${text}\n`);
  }

  close(): void {
    if (this.#output.isTTY === true) this.#output.write('\r\x1b[K');
  }
}
