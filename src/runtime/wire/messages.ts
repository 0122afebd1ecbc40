// What gateways and instances in different processes tell each other, checked field by field where it arrives.
import { z } from 'zod';
import type { Announcement } from '../../core/membership/liveness.ts';
import type { PrefixFetch, PrefixMessage } from '../../core/protocol/events.ts';
import type { PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole, ReportedRequest } from '../../core/protocol/instance-report.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot, PinOrder } from '../../core/protocol/ports.ts';
import { digestWords } from '../../util/blake2s.ts';
import { topLogprobsMax } from '../../util/step.ts';
import type { BlockRoot, OutputsMessage } from '../threads/thread-protocol.ts';
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';
import { decode } from './codec.ts';
import { wireVersion } from './frames.ts';
import { instanceSnapshot } from './instance-snapshot.ts';
import { type NamedGroup, name, namedGroup, type SessionName, sessionName } from './names.ts';
import { refusalCause } from './refusal-cause.ts';

const count = z.number().int().min(0);
const figure = z.number().min(0);
const finite = z.number();
const text = z.string().max(65_536);
const id = z.string().min(1).max(256);
const tokens = z.instanceof(Int32Array).refine((ids) => ids.every((token) => token >= 0), 'a token is negative');
const word = count.max(0xffff_ffff);

const sampling = z.strictObject({
  temperature: figure,
  topP: figure,
  topK: count,
  minP: figure,
  repetitionPenalty: figure,
  frequencyPenalty: finite,
  presencePenalty: finite,
  logitBias: z.array(z.tuple([count, finite])).max(65_536),
  seed: z.tuple([word, word]),
  topLogprobs: count.max(topLogprobsMax).optional(),
  promptLogprobs: z.boolean(),
});

export const request = z.strictObject({
  id,
  prompt: tokens.refine(({ length }) => length > 0, 'a prompt is empty'),
  maxTokens: count,
  sampling,
  stopTokenIds: z.array(count).max(65_536),
  priority: finite,
  batch: z.boolean().exactOptional(),
  salt: text,
  tenant: text.exactOptional(),
  trace: text.exactOptional(),
  sloClass: text.exactOptional(),
  tbtUsMax: figure.exactOptional(),
  resumed: z.strictObject({ tokens, scored: count }).optional(),
});

const prefix = z.strictObject({
  name,
  incarnation: count,
  blocks: count,
  patienceUs: figure,
  transferUs: figure.optional(),
});

const switched = z.enum(['mixed', 'prefill', 'decode']);
const order = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('submit'),
    request,
    decodeAt: sessionName.optional(),
    prefix: prefix.optional(),
    group: namedGroup.optional(),
  }),
  z.strictObject({ kind: z.literal('cancel'), id, interrupt: z.boolean() }),
  z.strictObject({ kind: z.literal('requestSnapshot'), unread: z.boolean() }),
  z.strictObject({ kind: z.literal('pin'), id, request, ttlUs: figure }),
  z.strictObject({ kind: z.literal('unpin'), id }),
  z.strictObject({ kind: z.literal('role'), role: switched }),
]);

const logprobs = z
  .strictObject({
    logprobs: z.instanceof(Float32Array),
    width: count.max(topLogprobsMax),
    topTokens: z.instanceof(Int32Array),
    topLogprobs: z.instanceof(Float32Array),
  })
  .refine(
    ({ logprobs, width, topTokens, topLogprobs }) =>
      topTokens.length === logprobs.length * width && topLogprobs.length === topTokens.length,
    'log-probabilities and their alternatives do not match',
  );

const event = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('accepted') }),
  z.strictObject({ kind: z.literal('started'), cachedTokens: count, ahead: z.literal(true).exactOptional() }),
  z.strictObject({ kind: z.literal('prompt-logprobs'), logprobs }),
  z.strictObject({ kind: z.literal('tokens'), tokens, logprobs: logprobs.optional(), at: count.exactOptional() }),
  z.strictObject({ kind: z.literal('finished'), reason: z.enum(['stop', 'length']) }),
  z.strictObject({
    kind: z.literal('failed'),
    code: z.enum(['NOT_READY', 'KV_OVERLOADED', 'CONTEXT_TOO_LONG', 'SHUTTING_DOWN', 'ENGINE_FAILED']),
    message: text,
    retryAfterMs: figure.optional(),
    cause: refusalCause.exactOptional(),
  }),
]);

const kvEvents = z
  .strictObject({
    incarnation: count,
    number: count,
    changes: count,
    words: z.instanceof(Uint32Array),
    stored: z.instanceof(Uint8Array),
  })
  .refine(
    ({ changes, words, stored }) => words.length === changes * digestWords && stored.length === changes,
    'a journal has not as many blocks as it says',
  );

export const kvSnapshot = z
  .strictObject({
    incarnation: count,
    number: count,
    blocks: count,
    words: z.instanceof(Uint32Array),
    onSsd: count.exactOptional(),
  })
  .refine(
    ({ blocks, words, onSsd = 0 }) => words.length === blocks * digestWords && onSsd <= blocks,
    'a snapshot has not as many blocks as it says',
  );

const pinState = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('pinned'), tokens: count, untilUs: figure }),
  z.strictObject({ kind: z.literal('refused'), why: z.enum(['length', 'memory', 'failed']), message: text }),
  z.strictObject({ kind: z.literal('unpinned') }),
]);

const step = z.strictObject({
  kind: z.enum(['step', 'fetch']),
  startedUs: figure,
  endedUs: figure,
  aborted: z.boolean(),
  rows: z.array(z.tuple([id, count, count])),
});

const turn = z.strictObject({
  events: z.array(z.tuple([id, event])),
  prefilled: z.array(id),
  released: z.array(z.tuple([id, text])),
  pins: z.array(z.tuple([id, pinState])),
  kvEvents: z.array(kvEvents),
  kvSnapshot: kvSnapshot.optional(),
  steps: z.array(step),
  role: switched.exactOptional(),
  snapshotNumber: count.exactOptional(),
});

const status = z.strictObject({
  snapshot: instanceSnapshot,
  number: count,
  kvEventNumber: count,
  requests: z.array(z.strictObject({ id, outputs: count, awaited: z.boolean() })),
});

const handOff = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('reserve'),
    id,
    gateway: sessionName,
    request,
    senders: z
      .array(z.strictObject({ name, incarnation: count, id: z.string().max(1024) }))
      .max(64)
      .optional(),
    asking: count.optional(),
  }),
  z.strictObject({ kind: z.literal('reserved'), id, landing: text, asking: count.optional() }),
  z.strictObject({ kind: z.literal('withdraw'), id, asking: count }),
  z.strictObject({ kind: z.literal('firstEvents'), id, events: z.array(event) }),
  z.strictObject({ kind: z.enum(['received', 'declined', 'release', 'unknown']), id }),
]);

const chain = z
  .strictObject({ blocks: count, words: z.instanceof(Uint32Array) })
  .refine(({ blocks, words }) => words.length === blocks * digestWords, 'a chain has not as many blocks as it says');
const layerRange = z.strictObject({
  index: count,
  stages: count,
  span: z.strictObject({ from: count, to: count }).optional(),
});
const fetch = z.discriminatedUnion('kind', [
  z
    .strictObject({ kind: z.literal('fetch'), id, chain, from: count, landing: text, range: layerRange.optional() })
    .refine(({ chain, from }) => from < chain.blocks, { path: ['from'], message: 'there is nothing to send' }),
  z.strictObject({ kind: z.literal('offer'), id, chain }),
  z.strictObject({ kind: z.literal('prefix'), id, blocks: count }),
  z.strictObject({ kind: z.enum(['missing', 'unwanted', 'prefixReceived']), id }),
]);

const role = z.enum(['mixed', 'prefill', 'decode', 'store']);
export const memberFields = {
  version: z.literal(wireVersion),
  name,
  incarnation: count,
  number: count,
};
export const root = z.strictObject({
  modelFingerprint: text,
  weightForm: text,
  inputForm: text,
  kvType: text,
  rope: text,
});
const instanceAnnouncement = z.strictObject({
  ...memberFields,
  role,
  root,
  identity: text,
  canSwitchRole: z.boolean(),
  capacityTokens: count,
  fetchBytesPerToken: figure.optional(),
  stageLayers: count.optional(),
});
const gatewayAnnouncement = z.strictObject({ ...memberFields, traces: z.boolean() });
// Releases before version 12 sent `life`: their announcements are read, so that the log can name their version.
const named = z.preprocess(
  (sent) => (typeof sent === 'object' && sent !== null && 'life' in sent ? { ...sent, incarnation: sent.life } : sent),
  z.object({ name: memberFields.name, incarnation: count, version: count.optional() }),
);
const leave = z.strictObject({ name: memberFields.name, incarnation: count });

/** Sends a part of a prompt, under that name. */
export interface NamedSender extends Pick<SessionName, 'name' | 'incarnation'> {
  readonly id: RequestId;
}

/** Between an instance that prefills and one that decodes. `id`: as the one that prefills calls the request. */
export type HandOffWire =
  /** To the one that decodes. The request under the name, and of the session, that its gateway has with that one. */
  | {
      readonly kind: 'reserve';
      readonly id: RequestId;
      readonly gateway: SessionName;
      readonly request: GenerationRequest;
      /** Undefined: the one who asks sends all. */
      readonly senders?: readonly NamedSender[] | undefined;
      /** How often memory was asked for and given up before; undefined: never. */
      readonly asking?: number | undefined;
    }
  | { readonly kind: 'firstEvents'; readonly id: RequestId; readonly events: readonly GenerationEvent[] }
  | { readonly kind: 'release'; readonly id: RequestId }
  /** Nothing comes for that asking; another may follow. */
  | { readonly kind: 'withdraw'; readonly id: RequestId; readonly asking: number }
  /** Back. */
  | {
      readonly kind: 'reserved';
      readonly id: RequestId;
      readonly landing: ReceiveBufferHandle;
      readonly asking?: number | undefined;
    }
  | { readonly kind: 'received' | 'declined'; readonly id: RequestId }
  /** Its gateway's session is not known, or over. */
  | { readonly kind: 'unknown'; readonly id: RequestId };

/** Between an instance that asks for a prefix and one that gives it. `id`: as the one that asks calls the request. */
export type FetchWire =
  | (Extract<PrefixMessage, { kind: 'fetch' }> & { readonly landing: ReceiveBufferHandle })
  /** To a store: this is here. */
  | Extract<PrefixMessage, { kind: 'offer' }>
  /** Nobody wants it any more. */
  | { readonly kind: 'unwanted'; readonly id: RequestId }
  /** All of it is here. */
  | { readonly kind: 'prefixReceived'; readonly id: RequestId }
  /** Back: so far it comes; it does not. */
  | { readonly kind: 'prefix'; readonly id: RequestId; readonly blocks: number }
  | { readonly kind: 'missing'; readonly id: RequestId };

/** A prefix that a start of another instance has. */
export interface NamedPrefix extends Omit<PrefixFetch, 'from'>, Omit<SessionName, 'session'> {}

/** To an instance. */
export type InstanceCommand =
  | {
      readonly kind: 'submit';
      readonly request: GenerationRequest;
      /** Who goes on with it: the instance, and the gateway's session with that one. */
      readonly decodeAt: SessionName | undefined;
      /** What it is to fetch before it starts. */
      readonly prefix: NamedPrefix | undefined;
      /** Who computes its prompt with it. */
      readonly group: NamedGroup | undefined;
    }
  | { readonly kind: 'cancel'; readonly id: RequestId; readonly interrupt: boolean }
  /** `unread`: the copy that it was told of last was not there. */
  | { readonly kind: 'requestSnapshot'; readonly unread: boolean }
  | ({ readonly kind: 'pin' } & PinOrder)
  | { readonly kind: 'unpin'; readonly id: PinId }
  /** What it does from now on; all gateways are told. */
  | { readonly kind: 'role'; readonly role: InstanceRole };

/** What one turn of an instance's loop brought a gateway: `steps` where it asks for them, with rows of its own requests alone. */
export interface InstanceOutputs extends Omit<OutputsMessage, 'kind' | 'snapshot'> {
  /** It does that from now on. */
  readonly role?: InstanceRole;
  /** A copy of all that it holds lies in the store, of that number or a later one: the journals are those since. */
  readonly snapshotNumber?: number;
}

/** Of an instance, told with each tally. */
export interface InstanceStatus {
  readonly snapshot: InstanceSnapshot;
  /** 1, 2, 3... in each session. */
  readonly number: number;
  /** The last journal that has left. */
  readonly kvEventNumber: number;
  /** Of the gateway that is told, with how many tokens of output it has been told of each. */
  readonly requests: readonly ReportedRequest[];
}

export interface GatewayAnnouncement extends Announcement {
  readonly version: typeof wireVersion;
  /** Somebody collects traces: it wants to hear of steps. */
  readonly traces: boolean;
}

export interface InstanceAnnouncement extends Announcement {
  readonly version: typeof wireVersion;
  readonly role: InstanceRole;
  /** May it be given another role? */
  readonly canSwitchRole: boolean;
  readonly root: BlockRoot;
  /** Of its blocks: as `identityOf` gives it. */
  readonly identity: string;
  /** Prompt plus output of a request at most. */
  readonly capacityTokens: number;
  /** Undefined: no prefix can be fetched from it. */
  readonly fetchBytesPerToken: number | undefined;
  /** Layers of the model, of which a group may run ranges; undefined: it can be in none. */
  readonly stageLayers: number | undefined;
}

/** Of one instance to others. */
export interface PeerAnnouncement extends Announcement {
  readonly version: typeof wireVersion;
}

/** Of an instance to those that it fetches prefixes from, or that fetch them from it. */
export interface FetcherAnnouncement extends PeerAnnouncement {
  /** It is a store: what others have computed may be offered to it. */
  readonly isStore: boolean;
}

/** Each throws an Error that names the field at fault. */
export const readCommand = reader<InstanceCommand>('an order', order);
export const readOutputs = reader<InstanceOutputs>("an instance's turn", turn);
export const readStatus = reader<InstanceStatus>("an instance's status", status);
export const readGateway = reader<GatewayAnnouncement>("a gateway's announcement", gatewayAnnouncement);
export const readInstance = reader<InstanceAnnouncement>("an instance's announcement", instanceAnnouncement);
export const readPeer = reader<PeerAnnouncement>("a peer's announcement", z.strictObject(memberFields));
export const readFetcher = reader<FetcherAnnouncement>(
  "an instance's announcement",
  z.strictObject({ ...memberFields, isStore: z.boolean() }),
);
export const readFetch = reader<FetchWire>('what is said of a prefix', fetch);
export const readHandOff = reader<HandOffWire>('a hand-off', handOff);
/** Whoever announces itself as whatever, of any version. */
export const readAnyAnnouncement = reader<
  Pick<Announcement, 'name' | 'incarnation'> & { readonly version: number | undefined }
>('an announcement', named);
export const readDeparture = reader<Pick<Announcement, 'name' | 'incarnation'>>('a farewell', leave);
/** A field that may be undefined is sent as none. */
type Received<T> = T extends ArrayBufferView
  ? T
  : T extends readonly unknown[]
    ? { readonly [K in keyof T]: Received<T[K]> }
    : T extends object
      ? { readonly [K in keyof T as undefined extends T[K] ? never : K]: Received<T[K]> } & {
          readonly [K in keyof T as undefined extends T[K] ? K : never]?: Received<T[K]> | undefined;
        }
      : T;

/** What comes is checked, and typed as it was sent. */
export function reader<T>(what: string, schema: z.ZodType<Received<T>>): (bytes: Uint8Array) => T {
  return (bytes) => {
    const parsed = schema.safeParse(decode(bytes));
    if (parsed.success) return parsed.data as T;
    const [issue] = parsed.error.issues;
    throw new Error(`Cannot read ${what}: ${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'it is malformed'}`);
  };
}
