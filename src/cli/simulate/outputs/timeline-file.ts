// Steps, transfers and requests of a simulated run as a Chrome trace in a file, written during the run.
import { type FileHandle, open } from 'node:fs/promises';
import type { SimulationConfig } from '../../../sim/engine/simulation-config.ts';
import { RequestRecorder } from '../../../sim/report/request-recorder.ts';
import { RunTimeline } from '../../../sim/report/run-timeline.ts';
import { timelineEnd, timelineStart } from '../../../trace/timeline.ts';
import type { Span } from '../../../trace/transform.ts';

/** A number of events that viewers handle well. */
const eventsMax = 1_000_000;

export class TimelineFile {
  readonly #file: FileHandle;
  readonly #path: string;
  readonly #timeline: RunTimeline;

  private constructor(file: FileHandle, path: string, window: Span) {
    this.#file = file;
    this.#path = path;
    this.#timeline = new RunTimeline(window, eventsMax);
  }

  /** @param rows names of instances, one row each */
  static async create(path: string, window: Span, rows: readonly string[]): Promise<TimelineFile> {
    const file = await open(path, 'w').catch((error: Error) => {
      throw new Error(`Cannot write ${path}: ${error.message.split('\n')[0]}`);
    });
    await file.writeFile(timelineStart(rows));
    return new TimelineFile(file, path, window);
  }

  get listeners(): Pick<SimulationConfig, 'stepListener' | 'transferListener' | 'requestListener'> {
    const timeline = this.#timeline;
    return {
      stepListener: timeline.addSteps,
      transferListener: timeline.addTransfer,
      requestListener: new RequestRecorder((record) => timeline.addRequest(record)),
    };
  }

  /** Writes the events since the last flush. */
  async flush(): Promise<void> {
    const text = this.#timeline.take();
    if (text !== '') await this.#file.writeFile(text);
  }

  /** @returns a line about omitted events, if any */
  async close(): Promise<string | undefined> {
    await this.flush();
    await this.#file.writeFile(timelineEnd);
    await this.#file.close();
    const { leftOut } = this.#timeline;
    return leftOut === 0
      ? undefined
      : `${this.#path} holds the first ${eventsMax} events of its window; ${leftOut} more were left out`;
  }
}
