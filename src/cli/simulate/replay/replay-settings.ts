// The options of a replay: those of the recorded server, and flags that change neither cluster nor workload.

import { type Command, Option } from 'commander';
import { z } from 'zod';
import { type EvictionKind, evictionKinds } from '../../../core/kvcache/eviction.ts';
import { isOfEngines, type Recording } from '../../../trace/recording/reader.ts';
import { borrowFields, remoteAttentionField } from '../../options/borrow-options.ts';
import { readOptions, toFlag } from '../../options/options.ts';
import { servedSloFields } from '../../options/slo-options.ts';
import { groups } from '../../terminal/help.ts';
import { UsageError } from '../../usage-error.ts';
import { outputFields } from '../outputs/run-outputs.ts';

const share = z.number().min(0).max(1);

/** As `kvasir serve --record` writes them. Settings of a later release are ignored. */
const recordedSchema = z.object({
  /** Instances are processes of their own. */
  processes: z.boolean().default(false),
  queue: z.number().int().min(1),
  stepMs: z.number().positive().optional(),
  eviction: z.enum(evictionKinds as readonly EvictionKind[]),
  pinMemory: share,
  balancingThreshold: z.number().min(1),
  copyHotPrefixes: z.boolean().default(false),
  /** Flags of the server that a recording does not describe. */
  others: z.array(z.string()).default([]),
  ...servedSloFields,
  ...borrowFields,
  lendHost: share.default(0),
  remoteAttention: remoteAttentionField,
});

const stepTimeKinds = ['recorded', 'fitted'] as const;

const flagsSchema = z.object({
  replay: z.string(),
  stepTimes: z.enum(stepTimeKinds).default('recorded'),
  check: z.boolean().default(false),
  /** Machines of engines, in place of recorded step times. */
  fleet: z.string().min(1).optional(),
  tables: z.string().min(1).optional(),
  model: z.string().min(1).optional(),
  ...outputFields,
});

export type ReplayFlags = z.infer<typeof flagsSchema>;
export interface ReplaySettings extends z.infer<typeof recordedSchema>, Pick<ReplayFlags, 'check' | 'stepTimes'> {
  /** A fleet file, measured step times and the name of a model's specification; undefined: step times are recorded ones. */
  readonly engines?:
    | { readonly fleet: string; readonly tables: string; readonly model: string | undefined }
    | undefined;
}

export function addReplayFlags(command: Command): Command {
  return command
    .optionsGroup(groups.workload)
    .option('--replay <file>', 'Replay this recording of kvasir serve --record in its own cluster, and compare')
    .addOption(
      new Option(
        '--step-times <kind>',
        'With --replay, a step with recorded rows takes its recorded time, or every step a fitted one (default: recorded)',
      ).choices(stepTimeKinds),
    );
}

/** @throws UsageError for a flag that has no effect without a recording */
export function refuseReplayFlags({ stepTimes }: Readonly<Record<string, unknown>>): void {
  if (stepTimes !== undefined) throw new UsageError('Cannot use --step-times: it needs --replay');
}

/** @param given flags of `kvasir simulate` @throws UsageError for one that the recording determines, or an invalid value */
export function replayFlags(given: Readonly<Record<string, unknown>>): ReplayFlags {
  const names = Object.keys(flagsSchema.shape);
  const wrong = Object.keys(given).find((name) => given[name] !== undefined && !names.includes(name));
  if (wrong !== undefined)
    throw new UsageError(`Cannot use --${toFlag(wrong)} with --replay: the recording defines cluster and workload`);
  const flags = readOptions(flagsSchema, given);
  const { fleet, tables, model } = flags;
  if ((fleet === undefined) !== (tables === undefined))
    throw new UsageError('Cannot use --fleet or --tables alone with --replay: add the other one');
  if (model !== undefined && tables === undefined)
    throw new UsageError('Cannot use --model with --replay: it needs --fleet and --tables');
  if (given.stepTimes !== undefined && tables !== undefined)
    throw new UsageError('Cannot use --step-times with --tables: steps take the times of the tables');
  return flags;
}

/** @throws UsageError naming the setting */
export function replaySettings(
  recording: Recording,
  { check, stepTimes, fleet, tables, model }: ReplayFlags,
): ReplaySettings {
  const ofEngines = isOfEngines(recording);
  if (check && ofEngines) throw new UsageError('Cannot use --check: the recording is of external engines');
  if (fleet !== undefined && !ofEngines)
    throw new UsageError('Cannot use --fleet with --replay: the recording has own instances, no external engines');
  const engines = fleet === undefined || tables === undefined ? undefined : { fleet, tables, model };
  const parsed = recordedSchema.safeParse(recording.header.settings);
  if (parsed.success) {
    const [other] = parsed.data.others;
    if (other === undefined) return { ...parsed.data, check, stepTimes, engines };
    throw new UsageError(`Cannot replay: the server ran with --${other}, which a recording does not describe`);
  }
  const [issue] = parsed.error.issues;
  throw new UsageError(`Cannot replay: the recorded setting ${issue?.path.join('.')} is invalid: ${issue?.message}`);
}
