// The request stream of a workload, from a file or synthetic, after slicing, tiling and speed-up.
import { Labels } from '../../trace/labels.ts';
import type { TraceRequest } from '../../trace/request.ts';
import type { TimeUnit } from '../../trace/time-unit.ts';
import { faster, Slice, type Span, Tiling } from '../../trace/transform.ts';
import { BatchJobStream } from '../../trace/workload/batch-jobs.ts';
import { WorkloadGenerator } from '../../trace/workload/generator.ts';
import { toFlag } from '../options/options.ts';
import {
  presetOf,
  type TransformOptions,
  type turnTimes,
  type WorkloadOptions,
  workloadFields,
  workloadOf,
} from '../options/workload-options.ts';
import { UsageError } from '../usage-error.ts';
import { readTrace, type TracePiece } from './trace-file.ts';

const groupSize = 1024;

export interface SourceOptions extends WorkloadOptions, TransformOptions {
  /** A trace file, or else the name of a workload. */
  readonly trace?: string | undefined;
  readonly workload?: string | undefined;
  /** Of the times in the trace; undefined: that of its format. */
  readonly timeUnit?: TimeUnit | undefined;
  readonly blockTokens: number;
  /** Clients of a closed loop; undefined: requests arrive at the times of the workload. */
  readonly clients?: readonly number[] | undefined;
  /** Undefined: estimated, or simulated in a closed loop. */
  readonly turnTimes?: (typeof turnTimes)[number] | undefined;
}

/** Turns of a session are sent when their answers have been simulated. */
function linksTurns({ trace, clients, turnTimes: kind }: SourceOptions): boolean {
  return trace === undefined && (kind ?? (clients === undefined ? 'estimated' : 'simulated')) === 'simulated';
}

/** Times between requests of clients also apply to a trace. */
function thinks(name: string): boolean {
  return name === 'think' || name === 'thinkTimes';
}

/**
 * Uses constant memory: a file is read again for every tile.
 * @throws UsageError at once, unless there is exactly one source
 */
export function openWorkload(options: SourceOptions): AsyncIterable<TracePiece> {
  if (options.trace === undefined && options.workload === undefined) {
    throw new UsageError('Cannot choose a workload: use --trace FILE or --workload NAME');
  }
  if (options.trace === undefined && options.timeUnit !== undefined)
    throw new UsageError('Cannot use --time-unit without --trace: it is the unit of the times in the file');
  if (linksTurns(options)) {
    const changed = (['slice', 'tile'] as const).find((name) => options[name] !== undefined && options[name] !== 1);
    if (changed !== undefined)
      throw new UsageError(`Cannot use --${changed} if turns follow simulated answers: use --turn-times estimated`);
  }
  if (options.trace === undefined) return tiled(options, () => generated(options, generatorOf(options)));
  const { trace, blockTokens, timeUnit, clients, turnTimes: kind } = options;
  if (kind !== undefined) throw new UsageError('Cannot use --turn-times with --trace: a trace has no sessions');
  const synthetic = ['workload', ...Object.keys(workloadFields).filter((name) => name !== 'seed')] as const;
  const flag = synthetic.find(
    (name) => options[name as keyof SourceOptions] !== undefined && (clients === undefined || !thinks(name)),
  );
  if (flag !== undefined)
    throw new UsageError(`Cannot use --${toFlag(flag)} with --trace: the file defines the requests`);
  return tiled(options, () => readTrace(trace, { blockTokens, timeUnit }));
}

type Pieces = AsyncIterable<TracePiece> | Iterable<TracePiece>;

async function* tiled(options: SourceOptions, open: () => Pieces): AsyncGenerator<TracePiece, void> {
  const { tile, speed, tenants = {}, seed } = options;
  const shares = Object.entries(tenants).map(([name, share]) => ({ name, share }));
  const labels = new Labels({ classes: [], tenants: shares, priorities: new Map(), seed });
  const tiling = new Tiling(options.tileBlocks === 'same');
  const jobs = batchJobsOf(options);
  for (let k = 0; k < tile; k++) {
    if (k > 0) tiling.again();
    for await (const { requests, share, source } of sliced(options.slice, open())) {
      const changed = requests.map((request) =>
        labels.take(faster(tile === 1 ? request : tiling.take(request), speed)),
      );
      yield { requests: jobs?.merge(changed) ?? changed, share: (k + share) / tile, source };
    }
  }
}

async function* sliced(span: Span | undefined, pieces: Pieces): AsyncGenerator<TracePiece, void> {
  if (span === undefined) return yield* pieces;
  const slice = new Slice(span);
  for await (const { requests, share, source } of pieces) {
    const kept: TraceRequest[] = [];
    for (const request of requests) {
      const taken = slice.take(request);
      if (taken !== undefined) kept.push(taken);
    }
    yield { requests: kept, share, source };
    if (slice.over) return;
  }
}

function batchJobsOf({ batchRate, batchInput, batchOutput, seed }: SourceOptions): BatchJobStream | undefined {
  if (batchRate === undefined) return undefined;
  return new BatchJobStream({ requestsPerSecond: batchRate, input: batchInput, output: batchOutput }, seed);
}

function generatorOf(options: SourceOptions): WorkloadGenerator {
  const workload = workloadOf(presetOf(options.workload ?? 'plain'), options);
  return new WorkloadGenerator(workload, { seed: options.seed, blockTokens: options.blockTokens });
}

function* generated(options: SourceOptions, generator: WorkloadGenerator): Generator<TracePiece, void> {
  const { requests: total = 1000, pinFamilies = 0, pinTtl = 600 } = options;
  if (pinFamilies > 0) yield { requests: generator.pins(pinFamilies, Math.round(pinTtl * 1e6)), share: 0 };
  if (linksTurns(options)) return yield* sessionsOf(generator, total);
  for (let done = 0; done < total; ) {
    const count = Math.min(groupSize, total - done);
    done += count;
    yield { requests: Array.from({ length: count }, () => generator.next()), share: done / total };
  }
}

function* sessionsOf(generator: WorkloadGenerator, total: number): Generator<TracePiece, void> {
  for (let done = 0; done < total; ) {
    const { request, turns } = generator.nextSession(total - done);
    done += turns;
    yield { requests: [request], share: done / total };
  }
}
