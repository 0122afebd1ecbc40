// Validation of the stored agreement record of a cluster.
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
/** Fields that records of every version may have. */
const anyAgreement = z.object({ version: z.number().int().optional(), hashKey: hashKey.optional() });

/** Throws an Error that names the invalid field. */
export const readAgreement = reader<Agreement & { readonly version: typeof wireVersion }>(
  "the cluster's record",
  agreement,
);
/** Reads a record of any version. */
export const readAnyAgreement = reader<{
  readonly version: number | undefined;
  readonly hashKey: readonly number[] | undefined;
}>("the cluster's record", anyAgreement);
