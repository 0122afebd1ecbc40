// Messages between gateways and instances in different processes, validated on receipt.
import { z } from 'zod';
import type { Announcement } from '../../core/membership/liveness.ts';
import type { StepState } from '../../core/membership/step-watchdog.ts';
import type { PrefixFetch, PrefixMessage, PrefixOffer } from '../../core/protocol/events.ts';
import { grammarCharactersMax } from '../../core/protocol/grammar.ts';
import type { PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole, PlacedLoad, ReportedRequest } from '../../core/protocol/instance-report.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot, PinOrder } from '../../core/protocol/ports.ts';
import { digestWords } from '../../util/blake2s.ts';
import { oneLine } from '../../util/one-line.ts';
import { topLogprobsMax } from '../../util/step.ts';
import type { BlockRoot, OutputsMessage } from '../threads/thread-protocol.ts';
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';
import { decode } from './codec.ts';
import {
  type EngineCallPart,
  type EngineHandOffInfo,
  engineCallPart,
  engineHandOffInfo,
  type PrefillAnswer,
  prefillAnswer,
} from './engine-messages.ts';
import { instanceSnapshot } from './instance-snapshot.ts';
import { type NamedGroup, name, namedGroup, type SessionName, sessionName } from './names.ts';
import { type StatedVersions, wireVersions } from './versions.ts';

const count = z.number().int().min(0);
const figure = z.number().min(0);
const finite = z.number();
const text = z.string().max(65_536);
const id = z.string().min(1).max(256);
const tokens = z.instanceof(Int32Array).refine((ids) => ids.every((token) => token >= 0), 'a token is negative');
const word = count.max(0xffff_ffff);

const sampling = z.object({
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

const grammar = z.object({
  kind: z.enum(['json_schema', 'regex', 'ebnf', 'structural_tag']),
  text: z.string().max(grammarCharactersMax),
});

export const request = z.object({
  id,
  prompt: tokens.refine(({ length }) => length > 0, 'a prompt is empty'),
  maxTokens: count,
  sampling,
  pooling: z.enum(['last', 'mean', 'cls']).exactOptional(),
  pairFrom: count.exactOptional(),
  stopTokenIds: z.array(count).max(65_536),
  minTokens: count.exactOptional(),
  grammar: grammar.exactOptional(),
  priority: finite,
  batch: z.boolean().exactOptional(),
  salt: text,
  kvBudget: z.union([count, z.literal('full')]).exactOptional(),
  tenant: text.exactOptional(),
  trace: text.exactOptional(),
  sloClass: text.exactOptional(),
  tbtUsMax: figure.exactOptional(),
  rechecks: z.boolean().exactOptional(),
  resumed: z.object({ tokens, scored: count }).optional(),
});

const prefix = z.object({
  name,
  incarnation: count,
  blocks: count,
  patienceUs: figure,
  transferUs: figure.optional(),
});

const offer = z.object({ name, incarnation: count, blocks: count });

const switchableRole = z.enum(['mixed', 'prefill', 'decode']);
const command = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('submit'),
    request,
    decodeAt: sessionName.optional(),
    prefix: prefix.optional(),
    offer: offer.exactOptional(),
    group: namedGroup.optional(),
    cachedTokens: count.exactOptional(),
    engineCall: engineCallPart.exactOptional(),
  }),
  z.object({ kind: z.literal('prefilled'), id }),
  z.object({ kind: z.literal('cancel'), id, interrupt: z.boolean() }),
  z.object({ kind: z.literal('requestSnapshot'), unreadable: z.boolean() }),
  z.object({ kind: z.literal('pin'), id, request, ttlUs: figure }),
  z.object({ kind: z.literal('unpin'), id }),
  z.object({ kind: z.literal('role'), role: switchableRole }),
]);

const logprobs = z
  .object({
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

const atPrefill = z.literal('prefill');
const atDecode = z.literal('decode');
const exceeded = { predictedUs: figure, mostUs: figure };
export const refusalCause = z.discriminatedUnion('reason', [
  z.object({ reason: z.literal('ttft'), at: atPrefill, ...exceeded }),
  z.object({ reason: z.literal('tbt'), at: z.union([atPrefill, atDecode]), ...exceeded }),
  z.object({ reason: z.literal('completion'), at: atPrefill, ...exceeded, outputTokens: figure, tbtUs: figure }),
  z.discriminatedUnion('at', [
    z.object({ reason: z.literal('memory'), at: atPrefill, share: figure }),
    z.object({
      reason: z.literal('memory'),
      at: atDecode,
      sequences: count,
      tokens: count,
      capacityTokens: figure,
    }),
  ]),
  z.object({ reason: z.literal('queue'), at: atPrefill, accepted: count, queueMax: count }),
  z.discriminatedUnion('at', [
    z.object({
      ...{ reason: z.literal('length'), at: atPrefill },
      ...{ promptTokens: count, outputTokensMax: count, capacityTokens: figure },
    }),
    z.object({ reason: z.literal('length'), at: atDecode, promptTokens: count }),
  ]),
]);

const failed = z.object({
  kind: z.literal('failed'),
  code: z.enum([
    'NOT_READY',
    'KV_OVERLOADED',
    'CONTEXT_TOO_LONG',
    'SHUTTING_DOWN',
    'GRAMMAR_FAILED',
    'UNSUPPORTED_REQUEST',
    'ENGINE_FAILED',
  ]),
  message: text,
  retryAfterMs: figure.optional(),
  cause: refusalCause.exactOptional(),
});

const event = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('accepted') }),
  z.object({
    kind: z.literal('started'),
    cachedTokens: count,
    ahead: z.literal(true).exactOptional(),
    alone: z.literal(true).exactOptional(),
    keptTokens: count.exactOptional(),
    prefillUs: figure.exactOptional(),
  }),
  z.object({ kind: z.literal('prompt-logprobs'), logprobs }),
  z.object({ kind: z.literal('embedding'), values: z.instanceof(Float32Array) }),
  z.object({ kind: z.literal('tokens'), tokens, logprobs: logprobs.optional(), at: count.exactOptional() }),
  z.object({ kind: z.literal('finished'), reason: z.enum(['stop', 'length']) }),
  failed,
]);

const kvEvents = z
  .object({
    incarnation: count,
    number: count,
    changes: count,
    words: z.instanceof(Uint32Array),
    stored: z.instanceof(Uint8Array),
  })
  .refine(
    ({ changes, words, stored }) => words.length === changes * digestWords && stored.length === changes,
    'the arrays do not match the number of changes',
  );

export const kvSnapshot = z
  .object({
    incarnation: count,
    number: count,
    blocks: count,
    words: z.instanceof(Uint32Array),
    onSsd: count.exactOptional(),
  })
  .refine(
    ({ blocks, words, onSsd = 0 }) => words.length === blocks * digestWords && onSsd <= blocks,
    'the arrays do not match the number of blocks',
  );

const pinState = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('pinned'), tokens: count, untilUs: figure }),
  z.object({ kind: z.literal('refused'), why: z.enum(['length', 'memory', 'failed']), message: text }),
  z.object({ kind: z.literal('unpinned') }),
]);

const step = z.object({
  kind: z.enum(['step', 'fetch']),
  startedUs: figure,
  endedUs: figure,
  aborted: z.boolean(),
  rows: z.array(z.tuple([id, count, count])),
  received: z.array(z.tuple([id, figure])).exactOptional(),
});

/** At least one of each: the conductor divides by them. */
const placedPrefills = z.object({
  priority: finite,
  tenant: text.exactOptional(),
  prompts: count.min(1),
  tokens: count.min(1),
  keyRows: count.min(1).exactOptional(),
});
const placedLoad = z.object({ prefills: z.array(placedPrefills).max(4096), rows: count, tokens: count });

const outputs = z.object({
  events: z.array(z.tuple([id, event])),
  prefilled: z.array(id),
  released: z.array(z.tuple([id, text, failed.optional()])),
  pins: z.array(z.tuple([id, pinState])),
  kvEvents: z.array(kvEvents),
  kvSnapshot: kvSnapshot.optional(),
  steps: z.array(step),
  prefills: z.array(z.tuple([id, prefillAnswer])).exactOptional(),
  role: switchableRole.exactOptional(),
  draining: z.literal(true).exactOptional(),
  snapshotNumber: count.exactOptional(),
  others: placedLoad.exactOptional(),
});

const status = z.object({
  snapshot: instanceSnapshot,
  number: count,
  kvEventNumber: count,
  requests: z.array(z.object({ id, outputs: count, receiving: z.boolean() })),
  unreachable: z.array(name).max(1024).optional(),
  others: placedLoad.exactOptional(),
  step: z.object({ count, predictedUs: figure, stalledUs: figure }).exactOptional(),
});

const handOff = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('reserve'),
    id,
    gateway: sessionName,
    request,
    senders: z
      .array(z.object({ name, incarnation: count, id: z.string().max(1024) }))
      .max(64)
      .optional(),
    sendersRequest: z.boolean().optional(),
    reservation: count.optional(),
    slotPages: count.optional(),
  }),
  z.object({ kind: z.literal('reserved'), id, receiveBuffer: text, reservation: count.optional() }),
  z.object({ kind: z.literal('withdraw'), id, reservation: count }),
  z.object({ kind: z.literal('firstEvents'), id, events: z.array(event) }),
  z.object({ kind: z.enum(['received', 'declined', 'release', 'unknown']), id }),
]);

const chain = z
  .object({ blocks: count, words: z.instanceof(Uint32Array) })
  .refine(
    ({ blocks, words }) => words.length === blocks * digestWords,
    'the array does not match the number of blocks',
  );
const layerRange = z.object({
  index: count,
  stages: count,
  span: z.object({ from: count, to: count }).optional(),
});
const fetch = z.discriminatedUnion('kind', [
  z
    .object({
      kind: z.literal('fetch'),
      id,
      chain,
      from: count,
      receiveBuffer: text,
      range: layerRange.optional(),
    })
    .refine(({ chain, from }) => from < chain.blocks, {
      path: ['from'],
      message: 'not less than the number of blocks',
    }),
  z.object({ kind: z.literal('offer'), id, chain }),
  z.object({ kind: z.literal('prefix'), id, blocks: count }),
  z.object({ kind: z.enum(['missing', 'unwanted', 'prefixReceived']), id }),
]);

const role = z.enum(['mixed', 'prefill', 'decode', 'store']);
export const memberFields = {
  version: count.min(wireVersions.min),
  versionMin: count.optional(),
  name,
  incarnation: count,
  number: count,
};
export const root = z.object({
  modelFingerprint: text,
  weightForm: text,
  inputForm: text,
  kvType: text,
  rope: text,
  sparseLayers: text.optional(),
});
const instanceAnnouncement = z.object({
  ...memberFields,
  role,
  root,
  identity: text,
  canSwitchRole: z.boolean(),
  capacityTokens: count,
  fetchBytesPerToken: figure.optional(),
  stageLayers: count.optional(),
  isa: name.optional(),
  pages: z.string().max(300).optional(),
  unreachable: z.array(name).max(1024).optional(),
  engine: engineHandOffInfo.exactOptional(),
});
const gatewayAnnouncement = z.object({ ...memberFields, traces: z.boolean() });
// Announcements of releases before version 12 have `life`; they are read so that the log can name their version.
const named = z.preprocess(
  (sent) => (typeof sent === 'object' && sent !== null && 'life' in sent ? { ...sent, incarnation: sent.life } : sent),
  z.object({
    ...{ name: memberFields.name, incarnation: count },
    ...{ version: count.optional(), versionMin: count.optional() },
  }),
);
const departure = z.object({ name: memberFields.name, incarnation: count });

/** A sender of a part of a prompt, and the request's id there. */
export interface NamedSender extends Pick<SessionName, 'name' | 'incarnation'> {
  readonly id: RequestId;
}

/** Between a prefill and a decode instance. `id`: of the request at the prefill instance. */
export type HandOffWire =
  /** To the decode instance. `gateway`: the session of the request's gateway with it; the request has the gateway's id. */
  | {
      readonly kind: 'reserve';
      readonly id: RequestId;
      readonly gateway: SessionName;
      readonly request: GenerationRequest;
      /** Undefined: this prefill instance sends the whole prompt. */
      readonly senders?: readonly NamedSender[] | undefined;
      /** Each sender requests memory itself; undefined: all get `reserved`. */
      readonly sendersRequest?: boolean | undefined;
      /** Number of earlier reservations that were withdrawn; undefined: 0. */
      readonly reservation?: number | undefined;
      /** Pages of slots for kept tokens; undefined: all tokens are sent. */
      readonly slotPages?: number | undefined;
    }
  | { readonly kind: 'firstEvents'; readonly id: RequestId; readonly events: readonly GenerationEvent[] }
  | { readonly kind: 'release'; readonly id: RequestId }
  /** That reservation is withdrawn; another may follow. */
  | { readonly kind: 'withdraw'; readonly id: RequestId; readonly reservation: number }
  /** To the prefill instance, as are the following. */
  | {
      readonly kind: 'reserved';
      readonly id: RequestId;
      readonly receiveBuffer: ReceiveBufferHandle;
      readonly reservation?: number | undefined;
    }
  | { readonly kind: 'received' | 'declined'; readonly id: RequestId }
  /** The gateway's session is unknown or has ended. */
  | { readonly kind: 'unknown'; readonly id: RequestId };

/** Between the receiver and the source of a prefix. `id`: of the request at the receiver. */
export type FetchWire =
  | (Extract<PrefixMessage, { kind: 'fetch' }> & { readonly receiveBuffer: ReceiveBufferHandle })
  /** To a store, or for a proactive copy: offers a prefix. */
  | Extract<PrefixMessage, { kind: 'offer' }>
  /** To the source: the fetch is cancelled. */
  | { readonly kind: 'unwanted'; readonly id: RequestId }
  /** To the source: the prefix has been received. */
  | { readonly kind: 'prefixReceived'; readonly id: RequestId }
  /** To the receiver: the number of blocks that are sent; or that the prefix is missing. */
  | { readonly kind: 'prefix'; readonly id: RequestId; readonly blocks: number }
  | { readonly kind: 'missing'; readonly id: RequestId };

/** A prefix, and the incarnation of an instance that has it. */
export interface NamedPrefix extends Omit<PrefixFetch, 'from'>, Omit<SessionName, 'session'> {}

/** Blocks of a prefix, and the incarnation of the instance to which they are offered. */
export interface NamedOffer extends Omit<PrefixOffer, 'to'>, Omit<SessionName, 'session'> {}

/** From a gateway to an instance. */
export type InstanceCommand =
  | {
      readonly kind: 'submit';
      readonly request: GenerationRequest;
      /** The decode instance, by the gateway's session with it. */
      readonly decodeAt: SessionName | undefined;
      /** The prefix to fetch before it starts. */
      readonly prefix: NamedPrefix | undefined;
      /** The first blocks of its prompt that it offers to another instance. */
      readonly offer?: NamedOffer;
      /** The group that computes its prompt. */
      readonly group: NamedGroup | undefined;
      /** Leading tokens of its prompt that are predicted to be cached; 0 unless given. */
      readonly cachedTokens?: number;
      /** Its part of a hand-off between two external engines. */
      readonly engineCall?: EngineCallPart;
    }
  /** The prefill engine of a hand-off has answered. */
  | { readonly kind: 'prefilled'; readonly id: RequestId }
  | { readonly kind: 'cancel'; readonly id: RequestId; readonly interrupt: boolean }
  /** `unreadable`: the stored snapshot that was reported last could not be read. */
  | { readonly kind: 'requestSnapshot'; readonly unreadable: boolean }
  | ({ readonly kind: 'pin' } & PinOrder)
  | { readonly kind: 'unpin'; readonly id: PinId }
  /** The new role, which the instance reports to all gateways. */
  | { readonly kind: 'role'; readonly role: InstanceRole };

/** Outputs of one iteration of an instance's loop for one gateway; `steps` only if it collects traces, with rows of its own requests. */
export interface InstanceOutputs extends Omit<OutputsMessage, 'kind' | 'snapshot'> {
  /** Answers of an external engine that prefills for other engines. */
  readonly prefills?: readonly (readonly [id: RequestId, answer: PrefillAnswer])[];
  /** The new role. */
  readonly role?: InstanceRole;
  /** The instance ends when its requests have ended: it accepts no others. */
  readonly draining?: true;
  /** A snapshot of this number or a later one is stored; `kvEvents` are the batches since. */
  readonly snapshotNumber?: number;
  /** Requests of other gateways, when they have changed. */
  readonly others?: PlacedLoad;
}

/** Status of an instance, sent with each ack. */
export interface InstanceStatus {
  readonly snapshot: InstanceSnapshot;
  /** Counts the reports of the session, from 1. */
  readonly number: number;
  /** Number of the last batch of KV events that was sent. */
  readonly kvEventNumber: number;
  /** Requests of the receiving gateway, with the number of output tokens sent. */
  readonly requests: readonly ReportedRequest[];
  /** Names of the instances to which it cannot send pages. */
  readonly unreachable?: readonly string[] | undefined;
  /** Requests of other gateways; undefined: there is none. */
  readonly others?: PlacedLoad;
  /** The running step; undefined: the sender does not state it. */
  readonly step?: StepState;
}

export interface GatewayAnnouncement extends Announcement {
  readonly version: number;
  /** The gateway collects traces, and needs the steps. */
  readonly traces: boolean;
}

export interface InstanceAnnouncement extends Announcement {
  readonly version: number;
  readonly role: InstanceRole;
  /** The role may change. */
  readonly canSwitchRole: boolean;
  readonly root: BlockRoot;
  /** Identity of its blocks, as `identityOf` computes it. */
  readonly identity: string;
  /** Largest prompt plus output of a request, in tokens. */
  readonly capacityTokens: number;
  /** Undefined: no prefix can be fetched from the instance. */
  readonly fetchBytesPerToken: number | undefined;
  /** Layers of the model of which a group may run ranges; undefined: the instance joins no groups. */
  readonly stageLayers: number | undefined;
  /** Instruction set of its kernels. */
  readonly isa?: string | undefined;
  /** Address on which it receives pages, as HOST:PORT; undefined: it receives none. */
  readonly pages?: string | undefined;
  /** Names of the instances to which it cannot send pages. */
  readonly unreachable?: readonly string[] | undefined;
  /** Of an external engine. */
  readonly engine?: EngineHandOffInfo;
}

/** Announcement of an instance to other instances. */
export interface PeerAnnouncement extends Announcement {
  readonly version: number;
}

/** Announcement of an instance that fetches prefixes or is a source of them. */
export interface FetcherAnnouncement extends PeerAnnouncement {
  /** The instance is a store, to which prefixes may be offered. */
  readonly isStore: boolean;
}

/** Each throws an Error that names the invalid field. */
export const readCommand = reader<InstanceCommand>('a command', command);
export const readOutputs = reader<InstanceOutputs>("an instance's outputs", outputs);
export const readStatus = reader<InstanceStatus>("an instance's status", status);
export const readGateway = reader<GatewayAnnouncement>("a gateway's announcement", gatewayAnnouncement);
export const readInstance = reader<InstanceAnnouncement>("an instance's announcement", instanceAnnouncement);
export const readPeer = reader<PeerAnnouncement>("a peer's announcement", z.object(memberFields));
export const readFetcher = reader<FetcherAnnouncement>(
  "an instance's announcement",
  z.object({ ...memberFields, isStore: z.boolean() }),
);
export const readFetch = reader<FetchWire>('a prefix message', fetch);
export const readHandOff = reader<HandOffWire>('a hand-off', handOff);
/** Reads the announcement of any role and version. */
export const readAnyAnnouncement = reader<Pick<Announcement, 'name' | 'incarnation'> & StatedVersions>(
  'an announcement',
  named,
);
export const readDeparture = reader<Pick<Announcement, 'name' | 'incarnation'>>('a departure', departure);

/** The type of a decoded message: undefined fields are not sent. */
type Received<T> = T extends ArrayBufferView
  ? T
  : T extends readonly unknown[]
    ? { readonly [K in keyof T]: Received<T[K]> }
    : T extends object
      ? { readonly [K in keyof T as undefined extends T[K] ? never : K]: Received<T[K]> } & {
          readonly [K in keyof T as undefined extends T[K] ? K : never]?: Received<T[K]> | undefined;
        }
      : T;

/** A validating decoder. @param what names the message in errors */
export function reader<T>(what: string, schema: z.ZodType<Received<T>>): (bytes: Uint8Array) => T {
  return (bytes) => {
    const parsed = schema.safeParse(decode(bytes));
    if (parsed.success) return parsed.data as T;
    const [issue] = parsed.error.issues;
    // A reason may contain a value, which the sender chooses.
    const [path, why] = [issue?.path.join('.') ?? '', issue?.message ?? 'malformed'].map((text) => oneLine(text, 200));
    throw new Error(`Cannot read ${what}: ${path}: ${why}`);
  };
}
