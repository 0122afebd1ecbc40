// Messages and stored records of lenders in different processes, validated on receipt.
import { z } from 'zod';
import { parseEnvelope } from '../../core/lending/parse.ts';
import type { LeaseRecord } from '../../core/membership/election.ts';
import type { Announcement } from '../../core/membership/liveness.ts';
import type { LendingWire } from '../lending/lending-wire.ts';
import { encode } from './codec.ts';
import { memberFields, reader } from './messages.ts';

const count = z.number().int().min(0);
const move = count;
const blocks = z.array(count).max(1 << 20);
const receiveBuffer = z.string().max(512);

const lenderWire = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('lending'),
    envelope: z.unknown().transform(parseEnvelope),
  }),
  z.object({ kind: z.literal('prepareCopy'), move, blocks }),
  z.object({ kind: z.literal('copyPrepared'), move, receiveBuffer }),
  z.object({ kind: z.literal('copy'), move, blocks, receiveBuffer }),
  z.object({ kind: z.enum(['copyReceived', 'copyFailed', 'endCopy']), move }),
  z.object({ kind: z.literal('remoteAttentionLoad'), permille: count.max(1000) }),
]);

export interface LenderAnnouncement extends Announcement {
  readonly version: number;
  /** The lender number. */
  readonly instance: number;
  /** Identity of its blocks and kernels, which must be the same for all lenders. */
  readonly identity: string;
  /** Blocks that it may lend. */
  readonly lendableBlocks: number;
  /** Address of its remote attention server: host and port. */
  readonly attentionAddress: string;
}

export interface LenderEntry {
  /** Empty: the number was freed. */
  readonly name: string;
  readonly incarnation: number;
}

const lender = z.object({
  ...memberFields,
  instance: count.max(0xffff),
  identity: z.string().max(512),
  lendableBlocks: count,
  attentionAddress: z
    .string()
    .regex(/^[\w.:-]{1,253}:\d{1,5}$/)
    .refine((address) => Number(address.slice(address.lastIndexOf(':') + 1)) < 65_536, 'its port is above 65535'),
});
// The stored record keeps the field name `life` of earlier releases.
const place = z
  .object({ name: z.string().max(64), life: count })
  .transform(({ name, life }): LenderEntry => ({ name, incarnation: life }));
const places = z.object({ places: z.array(place).max(4096) });
const lease = z.object({ holder: z.string().max(128).optional(), epoch: count });

/** Each throws an Error that names the invalid field. */
export const readLendingWire = reader<
  Exclude<LendingWire, { kind: 'attentionServer' | 'attentionAddress' | 'roundTrip' }>
>("a lender's message", lenderWire);
export const readLenderAnnouncement = reader<LenderAnnouncement>("a lender's announcement", lender);
export const readLenderRecord = reader<{ readonly places: readonly LenderEntry[] }>('the record of lenders', places);
export const readLease = reader<LeaseRecord>("the leader's lease", lease);

/** The stored record of lenders, as `readLenderRecord` reads it. */
export function encodeLenderRecord(places: readonly LenderEntry[]): Uint8Array {
  return encode({ places: places.map(({ name, incarnation }) => ({ name, life: incarnation })) });
}
