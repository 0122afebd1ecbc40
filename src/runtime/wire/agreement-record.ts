// The record of what all processes of a cluster have alike, as it is checked where it is read.
import { z } from 'zod';
import type { Agreement } from '../../core/membership/agreement.ts';
import type { wireVersion } from './frames.ts';
import { memberFields, reader, root } from './messages.ts';

const text = z.string().max(65_536);
const hashKey = z.array(z.number().int().min(0).max(0xffff_ffff)).length(4);

const agreement = z.strictObject({
  version: memberFields.version,
  hashKey,
  modelFingerprint: text,
  root: root.optional(),
  pages: z.strictObject({ token: text.optional(), mark: text }).optional(),
  again: z.boolean().optional(),
});
/** What records of all versions have, if they have it. */
const anyAgreement = z.object({ version: z.number().int().optional(), hashKey: hashKey.optional() });

/** Throws an Error that names the field at fault. */
export const readAgreement = reader<Agreement & { readonly version: typeof wireVersion }>(
  "the cluster's record",
  agreement,
);
/** Of a record of any version. */
export const readAnyAgreement = reader<{
  readonly version: number | undefined;
  readonly hashKey: readonly number[] | undefined;
}>("the cluster's record", anyAgreement);
