// The stored format of an instance's cache snapshot: a head, and parts that the head lists by checksum.
import { z } from 'zod';
import type { KvSnapshot } from '../../core/protocol/kv-events.ts';
import { encode } from './codec.ts';
import { kvSnapshot, memberFields, reader } from './messages.ts';
import { wireVersion } from './versions.ts';

/** Bounds the memory of a reader. */
export const partsMax = 1024;

/** Written last, when all parts are stored. */
export interface SnapshotHead {
  /** Incarnation of the writer. */
  readonly incarnation: number;
  /** Number of the last batch of KV events that the snapshot includes. */
  readonly number: number;
  /** Which of two sets of keys holds the parts: snapshots alternate. */
  readonly side: number;
  /** Checksum of each part. */
  readonly sums: readonly string[];
}

const count = z.number().int().min(0);
// The stored head keeps the field name `life` of earlier releases.
const head = z
  .object({
    version: memberFields.version,
    life: count,
    number: count,
    side: count.max(1),
    sums: z.array(z.string().max(64)).min(1).max(partsMax),
  })
  .transform(({ life, ...rest }) => ({ ...rest, incarnation: life }));
/** A head of any version. */
const anyHead = z.object({ life: count }).transform(({ life }) => ({ incarnation: life }));

/** Each throws an Error that names the invalid field. */
export const readHead = reader<SnapshotHead & { readonly version: number }>("a snapshot's head", head);
export const readAnyHead = reader<Pick<SnapshotHead, 'incarnation'>>("a snapshot's head", anyHead);
export const readBlocks = reader<KvSnapshot>('a snapshot', kvSnapshot);

/** The stored head, as `readHead` reads it. */
export function encodeHead({ incarnation, ...head }: SnapshotHead): Uint8Array {
  return encode({ version: wireVersion, ...head, life: incarnation });
}
