// The stored agreement record of a cluster: validation and encoding.
import { z } from 'zod';
import type { Agreement } from '../../core/membership/agreement.ts';
import { encode } from './codec.ts';
import { wireVersion } from './frames.ts';
import { memberFields, reader, root } from './messages.ts';

const text = z.string().max(65_536);
const hashKey = z.array(z.number().int().min(0).max(0xffff_ffff)).length(4);

// The stored record keeps the field name `again` of earlier releases.
const agreement = z
  .strictObject({
    version: memberFields.version,
    hashKey,
    modelFingerprint: text,
    root: root.optional(),
    pages: z.strictObject({ token: text.optional(), mark: text }).optional(),
    again: z.boolean().optional(),
  })
  .transform(({ again, ...rest }) => ({ ...rest, restored: again }));
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

/** The stored record, as `readAgreement` reads it. */
export function encodeAgreement({ restored, ...agreement }: Agreement): Uint8Array {
  return encode({ ...agreement, again: restored, version: wireVersion });
}
