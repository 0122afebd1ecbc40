// A copy of what an instance holds, as it lies in the store: a head, and parts that it names by their checksums.
import { z } from 'zod';
import type { KvSnapshot } from '../threads/thread-protocol.ts';
import { encode } from './codec.ts';
import { wireVersion } from './frames.ts';
import { kvSnapshot, memberFields, reader } from './messages.ts';

/** Of parts: what a reader makes room for at most is so many. */
export const partsMax = 1024;

/** Written last: what it names was there then. */
export interface SnapshotHead {
  /** Of the process that wrote it. */
  readonly incarnation: number;
  /** Of the last journal before it. */
  readonly number: number;
  /** Where its parts are: those of the copy before it lie in the other one of two. */
  readonly side: number;
  /** Of each part. */
  readonly sums: readonly string[];
}

const count = z.number().int().min(0);
// The stored head keeps the field name `life` of earlier releases.
const head = z
  .strictObject({
    version: memberFields.version,
    life: count,
    number: count,
    side: count.max(1),
    sums: z.array(z.string().max(64)).min(1).max(partsMax),
  })
  .transform(({ life, ...rest }) => ({ ...rest, incarnation: life }));
/** Of any version. */
const anyHead = z.object({ life: count }).transform(({ life }) => ({ incarnation: life }));

/** Each throws an Error that names the field at fault. */
export const readHead = reader<SnapshotHead & { readonly version: number }>("a snapshot's head", head);
export const readAnyHead = reader<Pick<SnapshotHead, 'incarnation'>>("a snapshot's head", anyHead);
export const readBlocks = reader<KvSnapshot>('a snapshot', kvSnapshot);

/** The stored head, as `readHead` reads it. */
export function encodeHead({ incarnation, ...head }: SnapshotHead): Uint8Array {
  return encode({ version: wireVersion, ...head, life: incarnation });
}
