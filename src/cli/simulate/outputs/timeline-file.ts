// The steps of a simulated run as a Chrome trace in a file, written during the run.
import { type FileHandle, open } from 'node:fs/promises';
import type { StepListener } from '../../../sim/engine/executor.ts';
import { StepTimeline } from '../../../sim/engine/step-timeline.ts';
import { timelineEnd, timelineStart } from '../../../trace/timeline.ts';
import type { Span } from '../../../trace/transform.ts';

/** A number of events that viewers handle well. */
const eventsMax = 1_000_000;

export class TimelineFile {
  readonly #file: FileHandle;
  readonly #path: string;
  readonly #steps: StepTimeline;

  private constructor(file: FileHandle, path: string, window: Span) {
    this.#file = file;
    this.#path = path;
    this.#steps = new StepTimeline(window, eventsMax);
  }

  /** @param rows names of instances, one row each */
  static async create(path: string, window: Span, rows: readonly string[]): Promise<TimelineFile> {
    const file = await open(path, 'w').catch((error: Error) => {
      throw new Error(`Cannot write ${path}: ${error.message.split('\n')[0]}`);
    });
    await file.writeFile(timelineStart(rows));
    return new TimelineFile(file, path, window);
  }

  get stepListener(): StepListener {
    return this.#steps.addSteps;
  }

  /** Writes the steps since the last flush. */
  async flush(): Promise<void> {
    const text = this.#steps.take();
    if (text !== '') await this.#file.writeFile(text);
  }

  /** @returns a line about omitted steps, if any */
  async close(): Promise<string | undefined> {
    await this.flush();
    await this.#file.writeFile(timelineEnd);
    await this.#file.close();
    const { leftOut } = this.#steps;
    return leftOut === 0
      ? undefined
      : `${this.#path} holds the first ${eventsMax} steps of its window; ${leftOut} more were left out`;
  }
}
