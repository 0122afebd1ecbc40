// Events that an instance or a conductor reacts to, and messages between instances, as plain data.

import type { StepResult } from '../../util/step.ts';
import type { InstanceIndex, MoveNumber, PinId, RequestId, SlotId, StepNumber } from './ids.ts';
import type { InstanceReport, InstanceRole, PlacedLoad } from './instance-report.ts';
import type { BlockChain, KvEventBatch, KvSnapshot } from './kv-events.ts';
import type { Envelope } from './lending-messages.ts';
import type { LinkReport } from './lending-report.ts';
import type { PinOrder, PinState } from './pin-order.ts';
import type { GenerationEvent, GenerationRequest } from './ports.ts';
import type { Refusal } from './refusals.ts';
import type { LayerRange } from './step-shape.ts';

/** Messages between instances. Each may arrive late or twice. */
export type PeerMessage<Request = GenerationRequest> =
  | HandOffMessage<Request>
  | PrefixMessage
  | PipelineMessage<Request>;

/** Messages about a prefix that another instance has cached. */
export type PrefixMessage =
  /**
   * Send the blocks of the chain from `from` on. Duplicate: sent once. After `cancelPrefix`: sent, and discarded by the
   * receiver. Lost: the requester's patience ends.
   */
  | {
      readonly kind: 'fetch';
      readonly id: RequestId;
      readonly chain: BlockChain;
      readonly from: number;
      /** Of these layers; undefined: of all. */
      readonly range?: LayerRange | undefined;
    }
  /**
   * To a store, or for a proactive copy: the sender has this prefix; the receiver fetches the part that it lacks.
   * Duplicate: it lacks nothing. Lost or late: the prefix is copied later, or not at all.
   */
  | { readonly kind: 'offer'; readonly id: RequestId; readonly chain: BlockChain }
  /** Answer to `fetch`: the blocks are not cached. Duplicate or unknown: ignored. Lost: like a lost `fetch`. */
  | { readonly kind: 'prefixMissing'; readonly id: RequestId }
  /** To the sender: stop. Unknown: the prefix has been sent. Lost: it is sent in vain. */
  | { readonly kind: 'cancelPrefix'; readonly id: RequestId };

/** A prefix of `blocks` blocks that is fetched from another instance. */
export interface PrefixFetch {
  readonly from: InstanceIndex;
  readonly blocks: number;
  /** Time from the request after which missing blocks are computed. */
  readonly patienceUs: number;
  /** Predicted time of the transfer. */
  readonly transferUs?: number | undefined;
}

/** A prefix of `blocks` blocks that an instance offers to another one, which fetches what it lacks. */
export interface PrefixOffer {
  readonly to: InstanceIndex;
  readonly blocks: number;
}

/** A prefix of `blocks` blocks; each member of a pipeline group gets its layers of it. */
export interface GroupPrefix {
  readonly blocks: number;
  /** The instance that has it; undefined: each member uses its own cache. */
  readonly from: InstanceIndex | undefined;
  /** Time from the request of a member after which missing blocks are computed. */
  readonly patienceUs: number;
}

/** Tokens `from..tokens` of a prompt, computed by a range of the layers; the first `cachedTokens` are not computed. */
export interface Activations {
  readonly from: number;
  readonly tokens: number;
  readonly cachedTokens: number;
}

/** Instances that compute a prompt together, in the order of their layers; `decodeAt` decodes it. */
export interface PipelineGroup {
  readonly members: readonly InstanceIndex[];
  /** (members): layers that each one runs; undefined: equal shares. */
  readonly layers?: readonly number[] | undefined;
  readonly chunkTokens: number;
  readonly decodeAt: InstanceIndex;
  /** Undefined: the whole prompt is computed. */
  readonly prefix?: GroupPrefix | undefined;
  /** Incarnation of `decodeAt`, where it is known. */
  readonly decodeIncarnation?: number | undefined;
}

/** Messages about a prompt that a pipeline group computes. */
export type PipelineMessage<Request = GenerationRequest> =
  /**
   * To the member at `index`, from the first one: allocate memory for its layers. Duplicate: the same answer. Ended
   * request: `declinePipeline`. Lost: repeated.
   */
  | {
      readonly kind: 'joinPipeline';
      readonly id: RequestId;
      readonly request: Request;
      readonly group: PipelineGroup;
      readonly index: number;
    }
  /**
   * To the first member: memory is allocated, and `cachedTokens` leading tokens are cached. Once all members have
   * joined, the prompt starts behind the smallest of these numbers. Duplicate or late: ignored. Lost: `joinPipeline` is
   * repeated.
   */
  | { readonly kind: 'joinedPipeline'; readonly id: RequestId; readonly cachedTokens: number }
  /**
   * To the first member: there is no memory. The first member computes the prompt alone. Duplicate or late: ignored.
   * Lost: `joinPipeline` is repeated.
   */
  | { readonly kind: 'declinePipeline'; readonly id: RequestId }
  /**
   * To the other members: release the memory. Unknown: a later `joinPipeline` is declined. Lost: memory is held until
   * the prompt is handed off or ends.
   */
  | { readonly kind: 'leavePipeline'; readonly id: RequestId };

/** Messages about a request that one instance prefills and another decodes. */
export type HandOffMessage<Request = GenerationRequest> =
  /**
   * To the receiver, when prefill starts: reserve memory for the prompt. Duplicate: the same answer, or `received` if
   * the prompt has arrived. Lost: repeated. Another incarnation ignores it.
   */
  | {
      readonly kind: 'reserve';
      readonly id: RequestId;
      readonly request: Request;
      readonly incarnation?: number | undefined;
      /** Tokens of prompt and output, for a request that has decoded before; undefined: the prompt. */
      readonly tokens?: number | undefined;
      /** Pages of slots that the sender has for the kept tokens; undefined: it sends all tokens. */
      readonly slotPages?: number | undefined;
      /**
       * Instances that each send a part; undefined: the requester. All get `reserved`, and each gets `received` when
       * its part has arrived.
       */
      readonly senders?: readonly InstanceIndex[] | undefined;
      /**
       * Each sender requests memory itself: only those that have done so get `reserved`, since the others may not have
       * joined their group yet.
       */
      readonly sendersRequest?: boolean | undefined;
      /**
       * Number of earlier reservations that were withdrawn. A later reservation replaces an earlier one. Undefined: 0.
       */
      readonly reservation?: number | undefined;
    }
  /**
   * To the sender: memory is granted. If the request has left, the answer is `release`; for an earlier reservation it
   * is `withdraw`. No memory stays reserved without use.
   */
  | { readonly kind: 'reserved'; readonly id: RequestId; readonly reservation?: number | undefined }
  /** To the sender: the prompt exceeds the receive buffer; the request fails. */
  | { readonly kind: 'declined'; readonly id: RequestId }
  /** To the sender: the whole prompt has arrived, its blocks may be freed. Unknown: the request was cancelled. */
  | { readonly kind: 'received'; readonly id: RequestId }
  /** To the receiver: nothing is sent, the memory may be freed. Unknown or late: ignored. */
  | { readonly kind: 'release'; readonly id: RequestId }
  /**
   * To the receiver: nothing is sent for that reservation; another may follow. Unknown: a later `reserve` with that
   * number is ignored. Duplicate or late: ignored. Lost: repeated.
   */
  | { readonly kind: 'withdraw'; readonly id: RequestId; readonly reservation: number };

/** Events of an instance. One about a step that is not in flight, or about a request that is not live, is ignored. */
export type InstanceEvent<Request = GenerationRequest, Result = StepResult> =
  /**
   * With `decodeAt`, only the prompt is computed here, and `decodeAt` decodes it. With `prefix` the request waits for
   * that prefix, with `group` a pipeline computes the prompt. Another incarnation than the one meant ignores it.
   * Duplicate or late: ignored.
   */
  | {
      readonly kind: 'submit';
      readonly request: Request;
      readonly decodeAt?: InstanceIndex | undefined;
      readonly prefix?: PrefixFetch | undefined;
      /** The first blocks of the prompt, which are cached here, are offered to another instance. */
      readonly offer?: PrefixOffer | undefined;
      /** Leading tokens of the prompt that the conductor predicts to be cached when it starts; undefined: unknown. */
      readonly cachedTokens?: number | undefined;
      readonly incarnation?: number | undefined;
      readonly decodeIncarnation?: number | undefined;
      readonly group?: PipelineGroup | undefined;
    }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  | { readonly kind: 'peer'; readonly from: InstanceIndex; readonly message: PeerMessage<Request> }
  /**
   * A stream from another instance has ended: keys and values of a prompt are here. Its client receives `firstEvents`
   * first.
   */
  | {
      readonly kind: 'promptReceived';
      readonly from: InstanceIndex;
      readonly id: RequestId;
      readonly firstEvents: readonly GenerationEvent[];
    }
  /**
   * A source has begun to send the blocks of the request's prompt before `to`. Late, duplicate, unknown or lost:
   * ignored.
   */
  | { readonly kind: 'arriving'; readonly id: RequestId; readonly source: LoadSource; readonly to: number }
  /**
   * A source has finished: the blocks of the request's prompt before `to` are here. Late, duplicate or unknown:
   * ignored.
   */
  | {
      readonly kind: 'loaded';
      readonly id: RequestId;
      readonly source: LoadSource;
      readonly to: number;
      /** A slot of SSD with corrupt contents. */
      readonly bad?: SlotId | undefined;
    }
  /** The oldest `blocks` blocks of the `writeSsd` effects are on SSD; at most as many as those named. */
  | {
      readonly kind: 'ssdWritten';
      readonly blocks: number;
      /** Indices of failed writes among them. */
      readonly failed?: readonly number[];
    }
  /** The stores of the cluster. Lost: new stores get no offers. */
  | { readonly kind: 'stores'; readonly stores: readonly Store[] }
  /** The stream of `streamPrefix` has ended: the prefix has been sent, or will not be. */
  | { readonly kind: 'prefixSent'; readonly id: RequestId; readonly to: InstanceIndex }
  /** The stream of a hand-off broke before all of it was sent. */
  | {
      readonly kind: 'streamBroken';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      /**
       * The stream carried activations: both members get the event, since either may be cut off or have released the
       * prompt.
       */
      readonly ofActivations?: boolean;
    }
  /** Pin a prefix for a time: answered with `pinUpdated`. Duplicate: the time is renewed. */
  | ({ readonly kind: 'pin' } & PinOrder<Request>)
  /** Unknown: ignored. */
  | { readonly kind: 'unpin'; readonly id: PinId }
  /** A message about memory that instances lend. */
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  /** Blocks of a move have arrived. */
  | { readonly kind: 'moved'; readonly move: MoveNumber }
  /** Blocks of a move will not arrive: the connection broke. */
  | { readonly kind: 'moveBroken'; readonly move: MoveNumber }
  /**
   * The connection to a creditor broke, or another incarnation answers: a step that waits for it cannot succeed, and
   * the blocks there are unreachable.
   */
  | { readonly kind: 'creditorCut'; readonly creditor: InstanceIndex }
  /** Share of a creditor's steps that attention for this instance took. */
  | { readonly kind: 'remoteAttentionLoad'; readonly creditor: InstanceIndex; readonly permille: number }
  /** Share of this instance's steps that attention for debtors takes from now on. Lost: the next one counts. */
  | { readonly kind: 'servedAttention'; readonly permille: number }
  /** Another instance failed, and what it held is lost. Duplicate: ignored. Lost: its loans end with their leases. */
  | { readonly kind: 'instanceFailed'; readonly instance: InstanceIndex }
  /**
   * An attention worker failed: keys and values of its KV heads are lost. Duplicate: ignored. Lost: steps stay
   * unanswered until it comes.
   */
  | { readonly kind: 'attentionWorkerLost'; readonly worker: number }
  /**
   * A lost attention worker is back, or another one has its place, with empty pages. `pages`: those that the instance may
   * use from now on; undefined: as many as before. Unknown or duplicate: ignored.
   */
  | { readonly kind: 'attentionWorkerReady'; readonly worker: number; readonly pages?: number | undefined }
  /** Measured links to other instances, all of them. Lost: the next one counts. */
  | { readonly kind: 'links'; readonly links: readonly LinkReport[] }
  /** Blocks that all other instances together may lend. */
  | { readonly kind: 'lenders'; readonly lendableBlocks: number }
  /** The time is `nextUs`. */
  | { readonly kind: 'wake' }
  /**
   * The activations of a chunk have arrived: the member before has computed its layers. Late, duplicate or unknown:
   * ignored.
   */
  | ({ readonly kind: 'activations'; readonly id: RequestId } & Activations)
  /**
   * The member before computes this chunk now: a step over it may begin, and waits. Late, duplicate, lost or unknown:
   * ignored.
   */
  | ({ readonly kind: 'activationsPending'; readonly id: RequestId } & Activations)
  /**
   * A request that outgrows this instance continues at `to`: send all of it. Duplicate, ended or preempted: ignored.
   * Lost: `outgrows` is repeated.
   */
  | {
      readonly kind: 'migrate';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly incarnation: number | undefined;
    }
  /** The grammar of the request is compiled, or cannot be: `fault` is the reason. Late, duplicate or unknown: ignored. */
  | { readonly kind: 'grammarCompiled'; readonly id: RequestId; readonly fault: string | undefined }
  /** Answered with a `snapshot` effect: all cached blocks. */
  | { readonly kind: 'requestSnapshot' }
  /** The instance ends when its requests have ended: it lends nothing more, and recalls what it has lent. */
  | { readonly kind: 'drain' }
  /**
   * `result` is read before `step` returns and may be reused then. `stepUs`: the time of each step that ran; undefined:
   * one step ran, and ended now.
   */
  | {
      readonly kind: 'stepDone';
      readonly step: StepNumber;
      readonly result: Result;
      readonly stepUs?: ArrayLike<number>;
    }
  /**
   * The step was aborted, and nothing of it counts. Cancels that arrived while it ran precede this event, or their
   * requests are planned again.
   */
  | { readonly kind: 'stepAborted'; readonly step: StepNumber }
  /** `message` is for the log only. */
  | { readonly kind: 'stepFailed'; readonly step: StepNumber; readonly message: string };

/** Events of a conductor. */
export type ConductorEvent<Request = GenerationRequest> =
  | { readonly kind: 'submit'; readonly request: Request }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  /** An instance reports an event of a request that was forwarded to it. */
  | {
      readonly kind: 'generationEvent';
      readonly instance: InstanceIndex;
      readonly id: RequestId;
      readonly event: GenerationEvent;
    }
  /** The prompt is computed, and is handed off to the instance that decodes it. */
  | { readonly kind: 'prefilled'; readonly instance: InstanceIndex; readonly id: RequestId }
  /** KV events of an instance's cache. Late or duplicate: ignored. After a lost one, a snapshot is requested. */
  | { readonly kind: 'kvEvents'; readonly instance: InstanceIndex; readonly batch: KvEventBatch }
  | { readonly kind: 'snapshot'; readonly instance: InstanceIndex; readonly snapshot: KvSnapshot }
  /** An instance failed, and what it held is lost. `why`: for the errors of its requests; it stopped unless given. */
  | { readonly kind: 'instanceFailed'; readonly instance: InstanceIndex; readonly why?: string }
  /**
   * An instance has started, or started again, and holds nothing. `incarnation` counts its starts. `capacityTokens`,
   * `role` and `keepsRole` (its role never changes) are given where they differ from those before. `kernels`: instances
   * of equal kernels compute equal bits; undefined: the bits do not depend on them.
   */
  | {
      readonly kind: 'instanceJoined';
      readonly instance: InstanceIndex;
      readonly incarnation: number;
      readonly capacityTokens?: number;
      readonly role?: InstanceRole;
      readonly keepsRole?: boolean;
      readonly kernels?: string | undefined;
    }
  /** The instance ends when its requests have ended: it gets no others. Duplicate: ignored. Lost: its requests are retried. */
  | { readonly kind: 'instanceDraining'; readonly instance: InstanceIndex }
  /** All instances to which this one cannot send pages. Late or duplicate: the last list counts. */
  | { readonly kind: 'unreachable'; readonly instance: InstanceIndex; readonly peers: readonly InstanceIndex[] }
  /**
   * The running step of an instance takes far longer than predicted, or does so no longer: while it does, new requests
   * avoid the instance. Late or duplicate: the last one counts. Lost: the next heartbeat has it again.
   */
  | { readonly kind: 'overdue'; readonly instance: InstanceIndex; readonly isOverdue: boolean }
  /** The heartbeat of an instance. Late or duplicate: ignored. The next one replaces a lost one. */
  | { readonly kind: 'report'; readonly instance: InstanceIndex; readonly report: InstanceReport }
  /** The load of other conductors on an instance has changed. Late or lost: the next report has the load again. */
  | { readonly kind: 'othersLoad'; readonly instance: InstanceIndex; readonly others: PlacedLoad }
  /**
   * The share of an instance's steps that attention for its debtors takes has changed. 0 after it joins or fails. Late
   * or lost: the next one counts.
   */
  | { readonly kind: 'servedAttention'; readonly instance: InstanceIndex; readonly permille: number }
  /**
   * An instance has released a request, which can continue elsewhere. With a refusal, no later attempt of the request
   * goes to this instance, and the refusal ends the request when no other instance can serve it. Lost: no report names
   * the request any more.
   */
  | {
      readonly kind: 'released';
      readonly instance: InstanceIndex;
      readonly id: RequestId;
      readonly why: string;
      readonly refusal?: Refusal | undefined;
    }
  /**
   * A request may reach so many tokens, more than its instance holds: it needs a bigger one. Duplicate: answered again
   * once an instance is chosen. Of an ended request: ignored.
   */
  | { readonly kind: 'outgrows'; readonly instance: InstanceIndex; readonly id: RequestId; readonly tokens: number }
  /** The request continues there; no other instance holds anything of it. Late or duplicate: ignored. */
  | { readonly kind: 'migrated'; readonly instance: InstanceIndex; readonly id: RequestId }
  /**
   * The instance takes new requests in that role, and finishes those that it has. Ignored where a role would be left
   * without instances.
   */
  | { readonly kind: 'switchRole'; readonly instance: InstanceIndex; readonly role: InstanceRole }
  /** Pin a prefix for a time at the best instance: answered with `pinUpdated`. Of a known pin: the time is renewed. */
  | ({ readonly kind: 'pin' } & PinOrder<Request>)
  | { readonly kind: 'unpin'; readonly id: PinId }
  /** The state of a pin at an instance. */
  | { readonly kind: 'pinUpdated'; readonly instance: InstanceIndex; readonly id: PinId; readonly state: PinState }
  /** The time is `nextUs`. */
  | { readonly kind: 'wake' }
  /** Accept no more requests; `drained` follows when all have ended. */
  | { readonly kind: 'drain' };

/** The source of blocks that are not in the instance's memory. */
export type LoadSource = InstanceIndex | 'ssd';

/** An instance that keeps the blocks that others have computed. */
export interface Store {
  readonly instance: InstanceIndex;
  /** Equal at all instances that offer to it, so that equal prefixes go to one store. */
  readonly key: number;
}
