// What requests may wait, and who is taken, from flags.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import type { AdmissionSettings } from '../cluster/length-admission.ts';
import { admissionKinds } from '../policy/admission/admission.ts';
import { parseSloBound, type SloBound, type SloClass } from '../policy/admission/slo.ts';
import { numeric } from './options.ts';
import { UsageError } from './usage-error.ts';

const bound = z.union([z.number(), z.string()]).transform((value, context): SloBound => {
  const parsed = parseSloBound(String(value));
  if (parsed !== undefined) return parsed;
  context.addIssue({ code: 'custom', message: 'write 250ms, 30s, or 10x (times the same request alone)' });
  return z.NEVER;
});

export const sloFields = {
  ttftSlo: bound.optional(),
  tbtSlo: bound.optional(),
  admission: z.enum(admissionKinds).default('none'),
  td: numeric(z.number().positive()).default(10),
  inlineTokens: numeric(z.number().int().min(0)).default(0),
};

const sloSchema = z.object(sloFields);
type SloOptions = Readonly<z.infer<typeof sloSchema>>;

export function addSloFlags(command: Command): Command {
  return command
    .option('--ttft-slo <time>', 'first token: 30s, 250ms or 250, or 10x what the same request takes alone')
    .option('--tbt-slo <time>', 'mean of the longest 10 % of gaps between tokens, likewise')
    .addOption(new Option('--admission <policy>', 'who is taken, given both (default: none)').choices(admissionKinds))
    .option('--td <seconds>', 'how long every decode is taken to last by --admission predictive (default: 10)')
    .option(
      '--inline-tokens <n>',
      'prompts with at most so many tokens to compute are prefilled where they decode, if that keeps the TBT SLOs (default: 0: none)',
    );
}

/** @throws UsageError when only one of the times is given, or none with an admission policy */
export function admissionSettings({ ttftSlo, tbtSlo, admission, td, inlineTokens }: SloOptions): AdmissionSettings {
  if ((ttftSlo === undefined) !== (tbtSlo === undefined))
    throw new UsageError('Cannot use one of --ttft-slo and --tbt-slo: either needs the other');
  const slo: SloClass | undefined =
    ttftSlo === undefined || tbtSlo === undefined ? undefined : { ttft: ttftSlo, tbt: tbtSlo };
  if (slo === undefined && admission !== 'none')
    throw new UsageError(`Cannot use --admission ${admission} without --ttft-slo and --tbt-slo`);
  return { kind: admission, slo, decodeUs: td * 1e6, inlineTokens: inlineTokens === 0 ? undefined : inlineTokens };
}
