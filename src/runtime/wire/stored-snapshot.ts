// A copy of what an instance holds, as it lies in the store: a head, and parts that it names by their checksums.
import { z } from 'zod';
import type { BlockSnapshot } from '../threads/thread-protocol.ts';
import { blocks, memberFields, reader } from './messages.ts';

/** Of parts: what a reader makes room for at most is so many. */
export const partsMax = 1024;

/** Written last: what it names was there then. */
export interface SnapshotHead {
  /** Of the process that wrote it. */
  readonly life: number;
  /** Of the last journal before it. */
  readonly number: number;
  /** Where its parts are: those of the copy before it lie in the other one of two. */
  readonly side: number;
  /** Of each part. */
  readonly sums: readonly string[];
}

const count = z.number().int().min(0);
const head = z.strictObject({
  version: memberFields.version,
  life: count,
  number: count,
  side: count.max(1),
  sums: z.array(z.string().max(64)).min(1).max(partsMax),
});
/** Of any version. */
const anyHead = z.object({ life: count });

/** Each throws an Error that names the field at fault. */
export const readHead = reader<SnapshotHead & { readonly version: number }>("a snapshot's head", head);
export const readAnyHead = reader<Pick<SnapshotHead, 'life'>>("a snapshot's head", anyHead);
export const readBlocks = reader<BlockSnapshot>('a snapshot', blocks);
