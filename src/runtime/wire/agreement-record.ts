// The stored agreement record of a cluster: validation and encoding.
import { z } from 'zod';
import type { Agreement } from '../../core/membership/agreement.ts';
import { encode } from './codec.ts';
import { memberFields, reader, root } from './messages.ts';
import { type StatedVersions, statedVersions } from './versions.ts';

const text = z.string().max(65_536);
const hashKey = z.array(z.number().int().min(0).max(0xffff_ffff)).length(4);

// The stored record keeps the field name `again` of earlier releases.
const agreement = z
  .object({
    version: memberFields.version,
    versionMin: memberFields.versionMin,
    hashKey,
    modelFingerprint: text,
    root: root.optional(),
    pages: z.object({ token: text.optional(), mark: text }).optional(),
    again: z.boolean().optional(),
  })
  .transform(({ again, versionMin: _, ...rest }) => ({ ...rest, restored: again }));
/** Fields that records of every version may have. */
const anyAgreement = z.object({
  version: z.number().int().optional(),
  versionMin: z.number().int().optional(),
  hashKey: hashKey.optional(),
});

/** Throws an Error that names the invalid field. */
export const readAgreement = reader<Agreement & { readonly version: number }>("the cluster's record", agreement);
/** Reads a record of any version. */
export const readAnyAgreement = reader<StatedVersions & { readonly hashKey: readonly number[] | undefined }>(
  "the cluster's record",
  anyAgreement,
);

/** The stored record, as `readAgreement` reads it. */
export function encodeAgreement({ restored, ...agreement }: Agreement): Uint8Array {
  return encode({ ...agreement, again: restored, ...statedVersions() });
}
