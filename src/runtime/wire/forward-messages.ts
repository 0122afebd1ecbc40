// Messages between gateways, validated on receipt: requests about files, batches and contexts that another gateway has.
import { z } from 'zod';
import type { Announcement } from '../../core/membership/liveness.ts';
import {
  type ForwardedRequest,
  type ForwardedResponse,
  forwardedBodyBytesMax,
  isForwardedPath,
  type KeyOpen,
  type KeyUsage,
  type SharedUsage,
} from '../../core/protocol/ports.ts';
import { memberFields, reader } from './messages.ts';

/** Bytes of one piece of a response at most. */
export const pieceBytesMax = 2 ** 18;

const call = z.number().int().min(0);
const bytesUpTo = (most: number) => z.instanceof(Uint8Array).refine(({ length }) => length <= most, 'it is too long');
const piece = { call, bytes: bytesUpTo(pieceBytesMax), last: z.boolean() };
/** Of responses, lower case. */
const header = z.tuple([z.enum(['content-type', 'retry-after', 'allow']), z.string().max(256)]);

const forwardWire = z.discriminatedUnion('kind', [
  z.object({
    ...{ kind: z.literal('request'), call, method: z.enum(['GET', 'POST', 'DELETE']) },
    path: z.string().refine(isForwardedPath, 'it is no path of files, batches or contexts'),
    owner: z.string().max(512),
    requestId: z.string().regex(/^[\w.:/-]{1,128}$/),
    body: bytesUpTo(forwardedBodyBytesMax),
  }),
  z.object({ kind: z.literal('refused'), call, why: z.string().max(512) }),
  z.object({
    ...{ kind: z.literal('response'), status: z.number().int().min(200).max(599), headers: z.array(header).max(3) },
    ...piece,
  }),
  z.object({ kind: z.literal('piece'), ...piece }),
  z.object({ kind: z.enum(['next', 'cancel']), call }),
]);

/** A piece of the response to a call. */
export interface ForwardedPiece {
  readonly call: number;
  readonly bytes: Uint8Array;
  readonly last: boolean;
}

/** `call`: a number of the gateway that forwards. */
export type ForwardWire =
  | ({ readonly kind: 'request'; readonly call: number } & ForwardedRequest)
  /** The next piece is needed, or no further one is. */
  | { readonly kind: 'next'; readonly call: number }
  | { readonly kind: 'cancel'; readonly call: number }
  /** To the gateway that forwards, as are the following. */
  | ({ readonly kind: 'response' } & Omit<ForwardedResponse, 'body'> & ForwardedPiece)
  | ({ readonly kind: 'piece' } & ForwardedPiece)
  | { readonly kind: 'refused'; readonly call: number; readonly why: string };

/** What ends the wait of a call. */
export type ForwardAnswer = Exclude<ForwardWire, { kind: 'request' | 'next' | 'cancel' }>;

export interface ForwarderAnnouncement extends Announcement {
  readonly version: number;
  /** Names the gateway in ids. */
  readonly key: string;
}

export const gatewayKeyPattern = /^[0-9a-f]{8}$/;

/** Keys whose usage a gateway sends at most, of each kind. */
export const sharedKeysMax = 8192;
const countOf = z.number().int().min(-Number.MAX_SAFE_INTEGER).max(Number.MAX_SAFE_INTEGER);
const owner = z.string().max(64);
const keyUsage = z.object({ owner, requests: countOf, tokens: countOf });
const openCount = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);
const keyOpen = z.object({
  owner,
  open: z.object({ requests: openCount, queued: openCount, connections: openCount }),
});

/** Each throws an Error that names the invalid field. */
export const readForward = reader<ForwardWire>("a gateway's message", forwardWire);
export const readForwarder = reader<ForwarderAnnouncement>(
  "a gateway's announcement",
  z.object({ ...memberFields, key: z.string().regex(gatewayKeyPattern) }),
);
const readEntries = reader<readonly (KeyUsage | KeyOpen)[]>(
  "a gateway's usage of keys",
  z.array(z.union([keyUsage, keyOpen])).max(2 * sharedKeysMax),
);

/** One list: gateways that share charges alone send it too. */
export function usageEntries({ charged, open }: SharedUsage): readonly (KeyUsage | KeyOpen)[] {
  return [...charged.slice(0, sharedKeysMax), ...open.slice(0, sharedKeysMax)];
}

export function readUsage(bytes: Uint8Array): SharedUsage {
  const entries = readEntries(bytes);
  return {
    charged: entries.filter((each) => 'tokens' in each),
    open: entries.filter((each) => 'open' in each),
  };
}
