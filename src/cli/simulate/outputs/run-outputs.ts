// Outputs of a simulated run besides its figures: report page, timeline and progress.
import type { Command } from 'commander';
import { z } from 'zod';
import type { LatencyBounds } from '../../../gateway/dashboard/class-latencies.ts';
import type { Simulation } from '../../../sim/engine/simulation.ts';
import type { RequestListener, SimulationConfig } from '../../../sim/engine/simulation-config.ts';
import { loadPlot } from '../../../sim/report/load-plot.ts';
import { type LoadOverTime, LoadRecorder } from '../../../sim/report/load-recorder.ts';
import { runReport } from '../../../sim/report/report.ts';
import { toFlag } from '../../options/options.ts';
import { timeSpan } from '../../options/workload-options.ts';
import { groups } from '../../terminal/help.ts';
import { SimulationProgress } from '../simulation-progress.ts';
import { checkOutputs, writeOutput } from './output-file.ts';
import { Recording, type RecordingOptions } from './recording-file.ts';
import { reportPage } from './report-page.ts';
import { RequestsFile } from './requests-file.ts';
import { TimelineFile } from './timeline-file.ts';

export const outputFields = {
  report: z.string().optional(),
  loadPlot: z.string().optional(),
  requestsOut: z.string().optional(),
  recording: z.string().optional(),
  timeline: z.string().optional(),
  timelineWindow: timeSpan.default({ unit: 'us', from: 0, to: 60_000_000 }),
};

const outputSchema = z.object(outputFields);
export type OutputOptions = Readonly<z.infer<typeof outputSchema>>;

/** The options of a run that writes no file: a trial, of which only the figures count. */
export function withoutOutputs<Options extends OutputOptions>(options: Options): Options {
  const none = { report: undefined, loadPlot: undefined, requestsOut: undefined, recording: undefined };
  return { ...options, ...none, timeline: undefined };
}

/** Options of one of several runs, whose files have `name` in their names: run.html becomes run-NAME.html. */
export function withOutputsOf<Options extends OutputOptions>(options: Options, name: string): Options {
  const named = (path: string | undefined) => path?.replace(/(\.\w+)?$/, `-${name}$1`);
  const { report, loadPlot: plot, requestsOut, recording, timeline } = options;
  const files = {
    recording: named(recording),
    report: named(report),
    loadPlot: named(plot),
    requestsOut: named(requestsOut),
    timeline: named(timeline),
  };
  return { ...options, ...files };
}

export function addOutputFlags(command: Command): Command {
  return command
    .optionsGroup(groups.output)
    .option('--json', 'Print one JSON object with all figures')
    .option('--report <file>', 'Write an HTML page with plots of the run')
    .option('--load-plot <file>', 'Write the loads of the prefill and decode pools over time as SVG')
    .option(
      '--requests-out <file>',
      'Write a record of each request: CSV, or by the ending of the name JSON lines (.jsonl) or Parquet (.parquet)',
    )
    .option('--recording <file>', 'Write a recording that the page of kvasir dashboard shows')
    .option('--timeline <file>', 'Write every step, transfer and request as a Chrome trace')
    .option('--timeline-window <span>', 'Show this simulated time in the timeline (default: 0s..60s)');
}

/** Observes a run and writes its outputs at the end. */
export class RunOutputs {
  readonly #options: OutputOptions;
  readonly #instances: readonly string[];
  readonly #timeline: TimelineFile | undefined;
  readonly #progress: SimulationProgress | undefined;
  readonly #requests: RequestsFile | undefined;
  readonly #recording: Recording | undefined;
  #recorder: LoadRecorder | undefined;

  private constructor(
    options: OutputOptions,
    instances: readonly string[],
    timeline: TimelineFile | undefined,
    showsProgress: boolean,
  ) {
    this.#progress = showsProgress ? new SimulationProgress(process.stderr) : undefined;
    this.#options = options;
    this.#instances = instances;
    this.#timeline = timeline;
    this.#requests = options.requestsOut === undefined ? undefined : new RequestsFile(options.requestsOut, instances);
    if (options.recording !== undefined) this.#recording = new Recording(recordingOptions(options, instances));
  }

  /** @param instances names of the instances */
  static async open(options: OutputOptions, instances: readonly string[], showsProgress: boolean): Promise<RunOutputs> {
    const { timeline, timelineWindow, report, loadPlot: plot, requestsOut, recording } = options;
    checkOutputs({ report, loadPlot: plot, requestsOut, recording, timeline });
    const file = timeline === undefined ? undefined : await TimelineFile.create(timeline, timelineWindow, instances);
    return new RunOutputs(options, instances, file, showsProgress);
  }

  /** The observers to create the simulation with. */
  get listeners(): Pick<SimulationConfig, 'stepListener' | 'transferListener' | 'requestListener'> {
    const { requestListener, stepListener, ...listeners } = this.#timeline?.listeners ?? {};
    const addSteps = this.#recording?.addSteps;
    const steps: SimulationConfig['stepListener'] = (...run) => {
      stepListener?.(...run);
      addSteps?.(...run);
    };
    const hasSteps = stepListener !== undefined || addSteps !== undefined;
    return {
      ...listeners,
      stepListener: hasSteps ? steps : undefined,
      requestListener: both(both(this.#requests?.recorder, requestListener), this.#recording),
    };
  }

  /** To be advanced before the simulation; undefined if no output needs the state over time. */
  recorderOf(simulation: Simulation): { advance(timeUs: number): void } | undefined {
    if (this.#options.report !== undefined || this.#options.loadPlot !== undefined)
      this.#recorder ??= new LoadRecorder(simulation);
    const [recorder, recording] = [this.#recorder, this.#recording];
    if (recording === undefined) return recorder;
    return {
      advance: (timeUs) => {
        recorder?.advance(timeUs);
        recording.advance(simulation, timeUs);
      },
    };
  }

  async progressed(share: number, simulation: Simulation): Promise<void> {
    this.#progress?.show(share, simulation);
    await this.#timeline?.flush();
  }

  /** Writes the outputs after the run. */
  async close(simulation: Simulation): Promise<void> {
    const { outcome } = simulation;
    const { recording } = this.#options;
    this.#progress?.close();
    if (recording !== undefined) writeOutput(recording, JSON.stringify(this.#recording?.close(simulation)));
    this.#recorder?.close();
    this.#requests?.close();
    if (this.#recorder !== undefined) this.#write(outcome, this.#recorder.load());
    const leftOut = await this.#timeline?.close();
    if (leftOut !== undefined) console.error(leftOut);
  }

  #write(outcome: Simulation['outcome'], load: LoadOverTime): void {
    const { report, loadPlot: plot } = this.#options;
    const about = { settings: settingsOf(this.#options), instances: this.#instances };
    if (report !== undefined) writeOutput(report, reportPage(runReport(outcome, load, about)));
    if (plot === undefined) return;
    const svg = loadPlot(load, titleOf(this.#options));
    if (svg === undefined) throw new Error(`Cannot write ${plot}: loads need requests with an SLO`);
    writeOutput(plot, svg);
  }
}

/** One listener for two. */
export function both(
  first: RequestListener | undefined,
  second: RequestListener | undefined,
): RequestListener | undefined {
  if (first === undefined || second === undefined) return first ?? second;
  return {
    placed: (...args) => {
      first.placed(...args);
      second.placed(...args);
    },
    found: (...args) => {
      first.found(...args);
      second.found(...args);
    },
    received: (...args) => {
      first.received?.(...args);
      second.received?.(...args);
    },
    ended: (...args) => {
      first.ended(...args);
      second.ended(...args);
    },
  };
}

/** Bounds of latencies, among the options of a run. */
interface SloSettings {
  readonly model?: unknown;
  readonly ttftSlo?: LatencyBounds['ttft'];
  readonly tbtSlo?: LatencyBounds['tbt'];
  readonly sloClasses?: Readonly<Record<string, LatencyBounds>>;
}

function recordingOptions(options: OutputOptions & SloSettings, instances: readonly string[]): RecordingOptions {
  const { model, ttftSlo, tbtSlo, sloClasses = {} } = options;
  const common = { ...(ttftSlo && { ttft: ttftSlo }), ...(tbtSlo && { tbt: tbtSlo }) };
  return {
    instances,
    model: shown(model ?? 'simulation'),
    boundsOf: (name) => (name === '' ? common : sloClasses[name]),
  };
}

const titleNames = ['admission', 'forecast', 'prefill', 'decode', 'speed'];

/** The title of a plot. */
function titleOf(options: OutputOptions): string {
  const titleSettings = settingsOf(options).filter(([name]) => titleNames.includes(name));
  return titleSettings.map(([name, value]) => `${name} ${value}`).join(', ');
}

const leadingSettings = ['trace', 'workload', 'model', 'hardware', 'prefill', 'decode', 'mixed', 'speed'];

/** '{"kind":"fixed","tokens":5}' becomes 'kind fixed, tokens 5'. */
function shown(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value);
  return Object.entries(value)
    .map(([name, part]) => `${name} ${shown(part)}`)
    .join(', ');
}

/** The settings on the report page, the most important first. */
function settingsOf({
  report: _,
  timeline: __,
  timelineWindow: ___,
  loadPlot: ____,
  requestsOut: _____,
  recording: ______,
  ...options
}: OutputOptions) {
  const rank = (name: string) =>
    leadingSettings.includes(name) ? leadingSettings.indexOf(name) : leadingSettings.length;
  return Object.entries(options)
    .filter(([, value]) => value !== undefined)
    .sort(([a], [b]) => rank(a) - rank(b))
    .map(([name, value]) => [toFlag(name), shown(value)] as const);
}
