// What the machines hear: every event that an instance or a conductor reacts to, as plain data.

import type { StepResult } from '../../util/step.ts';
import type { InstanceIndex, MoveNumber, PinId, RequestId, SlotId, StepNumber } from './ids.ts';
import type { InstanceReport, InstanceRole } from './instance-report.ts';
import type { BlockChain, KvEventBatch, KvSnapshot } from './kv-events.ts';
import type { Envelope } from './lending-messages.ts';
import type { PinOrder, PinState } from './pin-order.ts';
import type { GenerationEvent, GenerationRequest } from './ports.ts';
import type { LayerRange } from './step-shape.ts';

/** What instances tell each other. Every message may come late or twice. */
export type PeerMessage<Request = GenerationRequest> =
  | HandOffMessage<Request>
  | PrefixMessage
  | PipelineMessage<Request>;

/** Of a request that starts behind a prefix which another instance has. */
export type PrefixMessage =
  /** To that one: send the chain's blocks from `from` on. Doubled: one is sent. After `unwanted`: sent for nobody, and dropped there. Lost: the one that asked loses patience. */
  | {
      readonly kind: 'fetch';
      readonly id: RequestId;
      readonly chain: BlockChain;
      readonly from: number;
      /** Of these layers alone; undefined: of all. */
      readonly range?: LayerRange | undefined;
    }
  /** To a store: this prefix is here; the store fetches what it lacks of it. Doubled: nothing is lacking the second time. Lost or late: it is not kept there, or later. */
  | { readonly kind: 'offer'; readonly id: RequestId; readonly chain: BlockChain }
  /** To the one that asked: they are not here, or not any more. Doubled or unknown: nothing to do. Lost: as for `fetch`. */
  | { readonly kind: 'missing'; readonly id: RequestId }
  /** To the one that sends: stop. Unknown: it has left. Lost: it is sent for nobody. */
  | { readonly kind: 'unwanted'; readonly id: RequestId };

/** A prefix, `blocks` long, that another instance has and that is worth moving. */
export interface PrefixFetch {
  readonly from: InstanceIndex;
  readonly blocks: number;
  /** From when it is asked for: what takes longer is computed. */
  readonly patienceUs: number;
  /** How long it is predicted to take. */
  readonly transferUs?: number | undefined;
}

/** A prefix, `blocks` long, of which each member of a group gets its layers. */
export interface GroupPrefix {
  readonly blocks: number;
  /** Who has it; undefined: members use what they have themselves. */
  readonly from: InstanceIndex | undefined;
  /** From when a member asks for it: what takes longer is computed. */
  readonly patienceUs: number;
}

/** What a range of the layers made of a chunk. */
export interface Activations {
  readonly from: number;
  readonly tokens: number;
  readonly cachedTokens: number;
}

/** Who computes a prompt together, each a range of the layers, in the order of these; what comes then happens at `decodeAt`. */
export interface PipelineGroup {
  readonly members: readonly InstanceIndex[];
  /** (members): how many layers each runs; undefined: as many. */
  readonly layers?: readonly number[] | undefined;
  readonly chunkTokens: number;
  readonly decodeAt: InstanceIndex;
  /** Undefined: the whole prompt is computed. */
  readonly prefix?: GroupPrefix | undefined;
  /** Which start of that one is meant, where it is known. */
  readonly decodeIncarnation?: number | undefined;
}

/** Of a prompt that a group computes. */
export type PipelineMessage<Request = GenerationRequest> =
  /** To the member at `index`, from the first one: keep memory for your layers. Doubled: answered as before. Of a request that is gone: `unable`. Lost: said again. */
  | {
      readonly kind: 'joinPipeline';
      readonly id: RequestId;
      readonly request: Request;
      readonly group: PipelineGroup;
      readonly index: number;
    }
  /** To the first member: memory is kept, and so many leading tokens need not be computed. When all have said so, it begins behind the least of these. Doubled or late: nothing to do. Lost: as for `enlist`. */
  | { readonly kind: 'joinedPipeline'; readonly id: RequestId; readonly cachedTokens: number }
  /** To the first member: there is no memory. It computes the prompt alone. Doubled or late: nothing to do. Lost: as for `enlist`. */
  | { readonly kind: 'declinePipeline'; readonly id: RequestId }
  /** To the other members: let go. Unknown: an `enlist` that comes later is refused. Lost: memory is kept until the prompt is where it decodes, or over. */
  | { readonly kind: 'leavePipeline'; readonly id: RequestId };

/** Of a request that one prefills and another decodes. */
export type HandOffMessage<Request = GenerationRequest> =
  /** To the decoding one, when prefill starts: keep memory for the prompt. Doubled: answered as before, or `taken` where the prompt is there already. Lost: said again. `life`: which start of the other side is meant; another one has nothing to do with it. */
  | {
      readonly kind: 'reserve';
      readonly id: RequestId;
      readonly request: Request;
      readonly incarnation?: number | undefined;
      /** Of one that has decoded already: its prompt and output; undefined: the prompt. */
      readonly tokens?: number | undefined;
      /** Who sends, each a part; undefined: the one who asks. All hear `reserved`, and each `taken` when its part is here. */
      readonly senders?: readonly InstanceIndex[] | undefined;
      /** How often memory was asked for and given up before: a later asking takes the place of an earlier one. Undefined: never. */
      readonly asking?: number | undefined;
    }
  /** To the prefilling one: send. Of a request that is gone it is answered with `release`, of an asking that was given up with `withdraw`, so that no memory stays kept for nobody. */
  | { readonly kind: 'reserved'; readonly id: RequestId; readonly asking?: number | undefined }
  /** To the prefilling one: there will never be memory for it; the request fails. */
  | { readonly kind: 'declined'; readonly id: RequestId }
  /** To the prefilling one: all of it is here, let go. Unknown: the request was cancelled; nothing to do. */
  | { readonly kind: 'received'; readonly id: RequestId }
  /** To the decoding one: nothing will come, let go. Unknown or late: nothing to do. */
  | { readonly kind: 'release'; readonly id: RequestId }
  /** To the decoding one: nothing will come for that asking, and another may follow. Unknown: a `reserve` of that asking comes too late. Doubled or late: nothing to do. Lost: said again. */
  | { readonly kind: 'withdraw'; readonly id: RequestId; readonly asking: number };

/** To an instance. An event about a step that is not in flight, or about a request that is not live, is ignored. */
export type InstanceEvent<Request = GenerationRequest, Result = StepResult> =
  /**
   * With `decodeAt`, only the prompt is computed here: what comes then happens there. With `prefix` it starts when that prefix has come, with `group` others help with it. `life`, `decodeLife`: which starts of the two are meant;
   * another one does not take it. Doubled or late: of a request that was here before; nothing changes.
   */
  | {
      readonly kind: 'submit';
      readonly request: Request;
      readonly decodeAt?: InstanceIndex | undefined;
      readonly prefix?: PrefixFetch | undefined;
      readonly incarnation?: number | undefined;
      readonly decodeIncarnation?: number | undefined;
      readonly group?: PipelineGroup | undefined;
    }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  | { readonly kind: 'peer'; readonly from: InstanceIndex; readonly message: PeerMessage<Request> }
  /** A stream from another instance has ended: all keys and values of a prompt are here. `held` is what its client is to hear first. */
  | {
      readonly kind: 'promptReceived';
      readonly from: InstanceIndex;
      readonly id: RequestId;
      readonly held: readonly GenerationEvent[];
    }
  /** A source has begun: the blocks of the request's prompt before `to` come from it. Late, doubled, unknown or lost: nothing to do. */
  | { readonly kind: 'arriving'; readonly id: RequestId; readonly source: LoadSource; readonly to: number }
  /** A source has done its part: the blocks of the request's prompt before `to` are here. Late, doubled or unknown: nothing to do. */
  | {
      readonly kind: 'loaded';
      readonly id: RequestId;
      readonly source: LoadSource;
      readonly to: number;
      /** A slot of SSD that did not hold what it should. */
      readonly bad?: SlotId | undefined;
    }
  /** The oldest `blocks` of the blocks that `writeSsd` told are on SSD. More than were told: those that were. */
  | {
      readonly kind: 'ssdWritten';
      readonly blocks: number;
      /** Which of them, by number, could not be written. */
      readonly failed?: readonly number[];
    }
  /** These keep what others have computed, and no others do. Lost: nothing new is offered to whom is not named. */
  | { readonly kind: 'stores'; readonly stores: readonly Store[] }
  /** What `streamPrefix` was to send has left, or never will. */
  | { readonly kind: 'prefixSent'; readonly id: RequestId; readonly to: InstanceIndex }
  /** The stream of a hand-off broke before all had left. */
  | {
      readonly kind: 'streamBroken';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      /** Of what one member of a group passed on to another: both hear of it, since either may be cut off or have nothing left of the prompt. */
      readonly passes?: boolean;
    }
  /** Keep a prefix for a time: answered with `pinTold`. Doubled: its time is renewed. */
  | ({ readonly kind: 'pin' } & PinOrder<Request>)
  /** Unknown: nothing to do. */
  | { readonly kind: 'unpin'; readonly id: PinId }
  /** About memory that instances lend to one another. */
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  /** Blocks of this part of a move have arrived. */
  | { readonly kind: 'moved'; readonly move: MoveNumber }
  /** They never will: the connection that they came over broke. */
  | { readonly kind: 'moveBroken'; readonly move: MoveNumber }
  /** The connection to a creditor broke, or another life answers there: the step that waits for its partials is in vain, and what lies there is out of reach. */
  | { readonly kind: 'creditorCut'; readonly creditor: InstanceIndex }
  /** Guests' work for us took this share of a creditor's steps. */
  | { readonly kind: 'remoteAttentionLoad'; readonly creditor: InstanceIndex; readonly permille: number }
  /** Another instance is gone with all it had. Doubled: nothing to do. Lost: what it lent and borrowed ends with its leases. */
  | { readonly kind: 'instanceLost'; readonly instance: InstanceIndex }
  /** So many blocks may all others together lend that are there now, or were a moment ago. */
  | { readonly kind: 'lenders'; readonly lendableBlocks: number }
  /** It is `nextUs`. */
  | { readonly kind: 'wake' }
  /** The member before this one in a group has done its layers for the prompt's tokens `from..tokens`; the first `cachedTokens` of all it does not compute. Late, doubled or unknown: nothing to do. */
  | ({ readonly kind: 'activations'; readonly id: RequestId } & Activations)
  /** That member computes this chunk now, and its rows come by themselves: a step over them may begin, and waits. Late, doubled, lost or unknown: nothing to do. */
  | ({ readonly kind: 'activationsPending'; readonly id: RequestId } & Activations)
  /** A request that outgrows this instance's memory goes on at `to`, whose start `life` is meant: send all of it. Doubled: nothing more. Ended or preempted: nothing to do. Lost: `outgrows` is said again. */
  | {
      readonly kind: 'migrate';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly incarnation: number | undefined;
    }
  /** Tell all blocks that are held: answered with a `snapshot` effect. */
  | { readonly kind: 'requestSnapshot' }
  /**
   * `result` is read before `step` returns and may be reused then. `stepUs`, where the executor knows how long each step of a run took
   * (one entry for each that ran): else one step ran, and ended now.
   */
  | {
      readonly kind: 'stepDone';
      readonly step: StepNumber;
      readonly result: Result;
      readonly stepUs?: ArrayLike<number>;
    }
  /** The abort word was seen: nothing of the step counts. Cancels that arrived while it ran are to be told first, or it is planned again with them. */
  | { readonly kind: 'stepAborted'; readonly step: StepNumber }
  /** `message` is for the log alone. */
  | { readonly kind: 'stepFailed'; readonly step: StepNumber; readonly message: string };

/** To a conductor. */
export type ConductorEvent<Request = GenerationRequest> =
  | { readonly kind: 'submit'; readonly request: Request }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  /** An instance speaks about a request that was forwarded to it. */
  | {
      readonly kind: 'generationEvent';
      readonly instance: InstanceIndex;
      readonly id: RequestId;
      readonly event: GenerationEvent;
    }
  /** The prompt is computed and goes to the instance that decodes it. */
  | { readonly kind: 'prefilled'; readonly instance: InstanceIndex; readonly id: RequestId }
  /** What an instance's cache stored and dropped. Late and doubled ones change nothing; after a lost one a snapshot is asked for. */
  | { readonly kind: 'journal'; readonly instance: InstanceIndex; readonly journal: KvEventBatch }
  | { readonly kind: 'snapshot'; readonly instance: InstanceIndex; readonly snapshot: KvSnapshot }
  /** An instance is gone with all it had. */
  | { readonly kind: 'instanceLost'; readonly instance: InstanceIndex }
  /**
   * It is there, or there again, and has nothing yet. `life` counts its starts. With `capacityTokens` and `role` it is another one than was
   * there: so many fit at once, and it does that.
   */
  | {
      readonly kind: 'instanceJoined';
      readonly instance: InstanceIndex;
      readonly incarnation: number;
      readonly capacityTokens?: number;
      readonly role?: InstanceRole;
    }
  /** What an instance has. Late and doubled ones change nothing; after a lost one the next says all. */
  | { readonly kind: 'report'; readonly instance: InstanceIndex; readonly report: InstanceReport }
  /** An instance has let go of a request that it could have gone on with, were it not for others. Lost: no report names it any more. */
  | { readonly kind: 'released'; readonly instance: InstanceIndex; readonly id: RequestId; readonly why: string }
  /** A request may come to so many tokens, more than its instance holds: find it another. Doubled: answered again once that is there. Of one that is over: ignored. */
  | { readonly kind: 'outgrows'; readonly instance: InstanceIndex; readonly id: RequestId; readonly tokens: number }
  /** It goes on there, and nobody else has anything of it. Late or doubled: nothing changes. */
  | { readonly kind: 'migrated'; readonly instance: InstanceIndex; readonly id: RequestId }
  /** New requests go to it in that role; what it has ends there. Ignored where a role would be left with nobody. */
  | { readonly kind: 'switchRole'; readonly instance: InstanceIndex; readonly role: InstanceRole }
  /** Keep a prefix for a time where it is best kept: answered with `pinTold`. Of a pin that is known: its time is renewed. */
  | ({ readonly kind: 'pin' } & PinOrder<Request>)
  | { readonly kind: 'unpin'; readonly id: PinId }
  /** What became of a pin at an instance. */
  | { readonly kind: 'pinUpdated'; readonly instance: InstanceIndex; readonly id: PinId; readonly state: PinState }
  /** It is `nextUs`. */
  | { readonly kind: 'wake' }
  /** Take nothing more; say when all is done. */
  | { readonly kind: 'drain' };
/** Where blocks are that are not in the instance's own memory. */

export type LoadSource = InstanceIndex | 'ssd';
/** An instance that keeps what others have computed. */

export interface Store {
  readonly instance: InstanceIndex;
  /** The same at all who offer to it: equal prefixes go to one store. */
  readonly key: number;
}
