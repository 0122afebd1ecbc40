// Options of SLOs, admission and role switches.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { admissionKinds } from '../../core/router/admission/admission-policy.ts';
import { forecastKinds } from '../../core/router/admission/decode-forecast.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import { parseSloBound, type SloBound, type SloClass } from '../../core/router/admission/slo.ts';
import { roleSwitchLimits } from '../../core/router/roles/role-switch.ts';
import { Labels } from '../../trace/labels.ts';
import { groups, olderName } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { fromText, numeric } from './schema-parts.ts';

const bound = z.union([z.number(), z.string()]).transform((value, context): SloBound => {
  const parsed = parseSloBound(String(value));
  if (parsed !== undefined) return parsed;
  context.addIssue({ code: 'custom', message: 'write 250ms, 30s, or 10x (times the same request alone)' });
  return z.NEVER;
});

export function copyHotPrefixesFlag(): Option {
  return new Option(
    '--copy-hot-prefixes',
    'Copy a prefix to a free instance once prompts have waited at its holder for longer than its transfer takes',
  );
}

/** The bound as an option states it. */
export function boundText(bound: SloBound): string {
  return 'us' in bound ? `${bound.us / 1000}ms` : `${bound.times}x`;
}

/** 'chat=2s/100ms@0.7,batch=10x@0.3': TTFT/TBT or completion, and the share of requests that name no class. */
const classPattern = /^([\w-]+)=([^/@,]+)(?:\/([^/@,]+))?(?:@([\d.]+))?$/;

function classesOf(text: string): unknown {
  const entries = text.split(',').map((part) => {
    const match = classPattern.exec(part.trim());
    if (match === null) return [part, undefined] as const;
    const [, name, first, second, share] = match;
    const bounds = second === undefined ? { completion: first } : { ttft: first, tbt: second };
    return [name, { ...bounds, ...(share === undefined ? {} : { share }) }] as const;
  });
  return Object.fromEntries(entries);
}

const priority = numeric(z.number().int().min(-1000).max(1000)).default(0);
const traceClassFields = { priority, share: numeric(z.number().min(0)).default(0) };
const classForms = 'write name=TTFT/TBT or name=COMPLETION, in YAML name: {ttft, tbt} or name: {completion}';
const traceForms = `${classForms}, each with @SHARE or without`;

/** @param each fields of a class besides its times */
function classesWith<Each extends z.ZodRawShape>(each: Each, forms: string) {
  const completionClass = z.strictObject({ completion: bound, ...each });
  const sloClass = z.union([z.strictObject({ ttft: bound, tbt: bound, ...each }), completionClass], forms);
  return fromText(classesOf).pipe(z.record(z.string().regex(/^[\w-]+$/), sloClass, forms));
}

/** Options of both `serve` and `simulate`. */
const admissionFields = {
  ttftSlo: bound.optional(),
  tbtSlo: bound.optional(),
  admission: z.enum(admissionKinds).default('none'),
  forecast: z.enum(forecastKinds).default('td'),
  td: numeric(z.number().positive()).default(10),
  refusalProbabilityMax: numeric(z.number().gt(0).lt(1)).default(0.5),
  roleSwitch: z.boolean().default(false),
  roleDwell: numeric(z.number().positive()).default(roleSwitchLimits.dwellUs / 1e6),
  inlineTokens: numeric(z.number().int().min(0)).default(0),
};

/** Options for requests of a workload. */
export const sloFields = {
  ...admissionFields,
  sloClasses: classesWith(traceClassFields, traceForms).optional(),
  retries: numeric(z.number().int().min(0)).default(0),
  retryAfter: numeric(z.number().positive()).optional(),
};

/** Options for requests that name their class. */
export const servedSloFields = { ...admissionFields, sloClasses: classesWith({ priority }, classForms).optional() };

const sloSchema = z.object(sloFields);
const servedSchema = z.object(servedSloFields);
type SloOptions = Readonly<z.infer<typeof sloSchema>>;
type ServedSloOptions = Readonly<z.infer<typeof servedSchema>>;

export function addSloFlags(command: Command): Command {
  return addAdmissionFlags(command)
    .option(
      '--slo-classes <list>',
      'Define SLO classes as name=TTFT/TBT or name=COMPLETION, with @SHARE for requests that name no class',
    )
    .option('--retries <n>', 'Let a client repeat a refused request at most this number of times (default: 0)')
    .option(
      '--retry-after <seconds>',
      'Repeat a refused request after this time, plus a random part of it (default: as the refusal advises)',
    );
}

export function addServedSloFlags(command: Command): Command {
  return addAdmissionFlags(command).option(
    '--slo-classes <list>',
    'Define SLO classes as name=TTFT/TBT or name=COMPLETION; a request selects one with x-kvasir-slo: NAME',
  );
}

function addAdmissionFlags(command: Command): Command {
  return command
    .optionsGroup(groups.scheduling)
    .option(
      '--ttft-slo <time>',
      'Limit the time to first token: 30s, 250ms, or 10x the time of the same request on an idle instance',
    )
    .option('--tbt-slo <time>', 'Limit the mean of the longest 10 % of gaps between tokens, in the same notation')
    .addOption(
      new Option(
        '--admission <policy>',
        'Admit requests by this policy, which requires --ttft-slo and --tbt-slo (default: none)',
      ).choices(admissionKinds),
    )
    .addOption(
      new Option(
        '--forecast <way>',
        'Predict decode times for --admission predictive by --td, the mean so far, or learned lengths (default: td)',
      ).choices(forecastKinds),
    )
    .option('--td <seconds>', 'Assume that every decode lasts this long, with --forecast td (default: 10)')
    .option(
      '--refusal-probability-max <p>',
      'Refuse before prefill when the predicted probability of a decode-side refusal reaches this value (default: 0.5)',
    )
    .addOption(olderName('--odds-max <p>'))
    .option(
      '--inline-tokens <n>',
      'Prefill prompts of at most this number of uncached tokens on their decode instance, within the TBT SLO (default: 0)',
    )
    .option('--role-switch', 'Let instances switch between prefill and decode with the load; requires both SLOs')
    .option('--role-dwell <seconds>', 'Keep a role for at least this time (default: 15)');
}

/** @throws UsageError if only one of the SLOs is given, or none with an admission policy */
export function admissionSettings({
  ttftSlo,
  tbtSlo,
  sloClasses,
  admission,
  forecast,
  td,
  refusalProbabilityMax,
  inlineTokens,
  roleSwitch,
  roleDwell,
}: ServedSloOptions): AdmissionSettings {
  if ((ttftSlo === undefined) !== (tbtSlo === undefined))
    throw new UsageError('Cannot use one of --ttft-slo and --tbt-slo: each needs the other');
  const slo: SloClass | undefined =
    ttftSlo === undefined || tbtSlo === undefined ? undefined : { ttft: ttftSlo, tbt: tbtSlo };
  if (slo === undefined && sloClasses === undefined && admission !== 'none')
    throw new UsageError(`Cannot use --admission ${admission} without --ttft-slo and --tbt-slo, or --slo-classes`);
  const classes = sloClasses && { classes: new Map<string, SloClass>(Object.entries(sloClasses)) };
  if (slo === undefined && roleSwitch)
    throw new UsageError('Cannot use --role-switch without --ttft-slo and --tbt-slo: they define the load of a pool');
  const switches = roleSwitch
    ? { ...roleSwitchLimits, sustainUs: (roleDwell * 1e6) / 3, dwellUs: roleDwell * 1e6 }
    : undefined;
  const inline = inlineTokens === 0 ? undefined : inlineTokens;
  const common = { kind: admission, slo, forecast, decodeUs: td * 1e6, refusalProbabilityMax };
  return { ...common, inlineTokens: inline, roleSwitch: switches, ...classes };
}

/** Assigns classes to requests that name none. */
export function labelsOf({ sloClasses = {}, seed }: SloOptions & { readonly seed: number }): Labels {
  const classes = Object.entries(sloClasses);
  const drawn = classes.map(([name, { share }]) => ({ name, share })).filter(({ share }) => share > 0);
  return new Labels({
    classes: drawn,
    tenants: [],
    priorities: new Map(classes.map(([name, { priority }]) => [name, priority])),
    seed,
  });
}

/** Undefined: refused requests are not repeated. */
export function retrySettings({ retries, retryAfter, seed }: SloOptions & { readonly seed: number }) {
  if (retries === 0) return undefined;
  return { returnsMax: retries, afterUs: retryAfter === undefined ? undefined : retryAfter * 1e6, seed };
}
