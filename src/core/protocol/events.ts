// Events that an instance or a conductor reacts to, and messages between instances, as plain data.

import type { StepResult } from '../../util/step.ts';
import type { InstanceIndex, MoveNumber, PinId, RequestId, SlotId, StepNumber } from './ids.ts';
import type { InstanceReport, InstanceRole } from './instance-report.ts';
import type { BlockChain, KvEventBatch, KvSnapshot } from './kv-events.ts';
import type { Envelope } from './lending-messages.ts';
import type { PinOrder, PinState } from './pin-order.ts';
import type { GenerationEvent, GenerationRequest } from './ports.ts';
import type { LayerRange } from './step-shape.ts';

/** Messages between instances. Each may arrive late or twice. */
export type PeerMessage<Request = GenerationRequest> =
  | HandOffMessage<Request>
  | PrefixMessage
  | PipelineMessage<Request>;

/** Messages about a prefix that another instance has cached. */
export type PrefixMessage =
  /** Send the blocks of the chain from `from` on. Doubled: sent once. After `unwanted`: sent, and dropped by the receiver. Lost: the requester's patience ends. */
  | {
      readonly kind: 'fetch';
      readonly id: RequestId;
      readonly chain: BlockChain;
      readonly from: number;
      /** Of these layers; undefined: of all. */
      readonly range?: LayerRange | undefined;
    }
  /** To a store: the sender has this prefix; the store fetches what it lacks. Doubled: nothing is lacking. Lost or late: it is stored later, or not at all. */
  | { readonly kind: 'offer'; readonly id: RequestId; readonly chain: BlockChain }
  /** Answer to `fetch`: the blocks are not cached. Doubled or unknown: ignored. Lost: as `fetch`. */
  | { readonly kind: 'missing'; readonly id: RequestId }
  /** To the sender: stop. Unknown: it has been sent. Lost: it is sent in vain. */
  | { readonly kind: 'unwanted'; readonly id: RequestId };

/** A prefix of `blocks` blocks that is fetched from another instance. */
export interface PrefixFetch {
  readonly from: InstanceIndex;
  readonly blocks: number;
  /** From the request on: what takes longer is computed. */
  readonly patienceUs: number;
  /** Predicted time of the transfer. */
  readonly transferUs?: number | undefined;
}

/** A prefix of `blocks` blocks; each member of a pipeline group gets its layers of it. */
export interface GroupPrefix {
  readonly blocks: number;
  /** The instance that has it; undefined: members use what they have themselves. */
  readonly from: InstanceIndex | undefined;
  /** From the request of a member on: what takes longer is computed. */
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
  /** To the member at `index`, from the first one: allocate memory for its layers. Doubled: answered alike. Of an ended request: `declinePipeline`. Lost: repeated. */
  | {
      readonly kind: 'joinPipeline';
      readonly id: RequestId;
      readonly request: Request;
      readonly group: PipelineGroup;
      readonly index: number;
    }
  /** To the first member: memory is allocated, and so many leading tokens are cached. Once all members have joined, the prompt starts behind the least of these. Doubled or late: ignored. Lost: as `joinPipeline`. */
  | { readonly kind: 'joinedPipeline'; readonly id: RequestId; readonly cachedTokens: number }
  /** To the first member: there is no memory. It computes the prompt alone. Doubled or late: ignored. Lost: as `joinPipeline`. */
  | { readonly kind: 'declinePipeline'; readonly id: RequestId }
  /** To the other members: release the memory. Unknown: a later `joinPipeline` is declined. Lost: memory is held until the prompt is handed off or ends. */
  | { readonly kind: 'leavePipeline'; readonly id: RequestId };

/** Messages about a request that one instance prefills and another decodes. */
export type HandOffMessage<Request = GenerationRequest> =
  /** To the receiver, when prefill starts: reserve memory for the prompt. Doubled: answered alike, or with `received` where the prompt is there. Lost: repeated. Another incarnation ignores it. */
  | {
      readonly kind: 'reserve';
      readonly id: RequestId;
      readonly request: Request;
      readonly incarnation?: number | undefined;
      /** Of a request that has decoded before: prompt and output; undefined: the prompt. */
      readonly tokens?: number | undefined;
      /** Instances that each send a part; undefined: the requester. All get `reserved`, and each gets `received` when its part is here. */
      readonly senders?: readonly InstanceIndex[] | undefined;
      /** Number of the reservation: how many were given up before. A later reservation replaces an earlier one. Undefined: the first. */
      readonly reservation?: number | undefined;
    }
  /** To the sender: memory is granted. Of a request that has left it is answered with `release`, of an earlier reservation with `withdraw`, so that no memory stays reserved in vain. */
  | { readonly kind: 'reserved'; readonly id: RequestId; readonly reservation?: number | undefined }
  /** To the sender: the prompt exceeds the receive buffer; the request fails. */
  | { readonly kind: 'declined'; readonly id: RequestId }
  /** To the sender: all of it is here, its blocks may be freed. Unknown: the request was cancelled. */
  | { readonly kind: 'received'; readonly id: RequestId }
  /** To the receiver: nothing is sent, the memory may be freed. Unknown or late: ignored. */
  | { readonly kind: 'release'; readonly id: RequestId }
  /** To the receiver: nothing is sent for that reservation; another may follow. Unknown: a later `reserve` with that number is ignored. Doubled or late: ignored. Lost: repeated. */
  | { readonly kind: 'withdraw'; readonly id: RequestId; readonly reservation: number };

/** Events of an instance. One about a step that is not in flight, or about a request that is not live, is ignored. */
export type InstanceEvent<Request = GenerationRequest, Result = StepResult> =
  /**
   * With `decodeAt`, only the prompt is computed here, and `decodeAt` decodes it. With `prefix` the request waits for that prefix, with `group`
   * a pipeline computes the prompt. Another incarnation than the one meant ignores it. Doubled or late: ignored.
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
  /** A stream from another instance has ended: keys and values of a prompt are here. Its client receives `firstEvents` first. */
  | {
      readonly kind: 'promptReceived';
      readonly from: InstanceIndex;
      readonly id: RequestId;
      readonly firstEvents: readonly GenerationEvent[];
    }
  /** A source has begun to send the blocks of the request's prompt before `to`. Late, doubled, unknown or lost: ignored. */
  | { readonly kind: 'arriving'; readonly id: RequestId; readonly source: LoadSource; readonly to: number }
  /** A source has finished: the blocks of the request's prompt before `to` are here. Late, doubled or unknown: ignored. */
  | {
      readonly kind: 'loaded';
      readonly id: RequestId;
      readonly source: LoadSource;
      readonly to: number;
      /** A slot of SSD whose content is corrupt. */
      readonly bad?: SlotId | undefined;
    }
  /** The oldest `blocks` blocks of the `writeSsd` effects are on SSD; at most as many as those named. */
  | {
      readonly kind: 'ssdWritten';
      readonly blocks: number;
      /** Those of them, by number, that could not be written. */
      readonly failed?: readonly number[];
    }
  /** The stores of the cluster. Lost: new stores get no offers. */
  | { readonly kind: 'stores'; readonly stores: readonly Store[] }
  /** The prefix of `streamPrefix` has left, or never will. */
  | { readonly kind: 'prefixSent'; readonly id: RequestId; readonly to: InstanceIndex }
  /** The stream of a hand-off broke before all of it was sent. */
  | {
      readonly kind: 'streamBroken';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      /** The stream carried activations: both members get the event, since either may be cut off or have released the prompt. */
      readonly ofActivations?: boolean;
    }
  /** Pin a prefix for a time: answered with `pinUpdated`. Doubled: the time is renewed. */
  | ({ readonly kind: 'pin' } & PinOrder<Request>)
  /** Unknown: ignored. */
  | { readonly kind: 'unpin'; readonly id: PinId }
  /** A message about memory that instances lend. */
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  /** Blocks of a move have arrived. */
  | { readonly kind: 'moved'; readonly move: MoveNumber }
  /** They never will: the connection broke. */
  | { readonly kind: 'moveBroken'; readonly move: MoveNumber }
  /** The connection to a creditor broke, or another incarnation answers: a step that waits for it is in vain, and the blocks there are out of reach. */
  | { readonly kind: 'creditorCut'; readonly creditor: InstanceIndex }
  /** Share of a creditor's steps that attention for this instance took. */
  | { readonly kind: 'remoteAttentionLoad'; readonly creditor: InstanceIndex; readonly permille: number }
  /** Another instance failed, and what it held is lost. Doubled: ignored. Lost: its loans end with their leases. */
  | { readonly kind: 'instanceFailed'; readonly instance: InstanceIndex }
  /** Blocks that all other instances together may lend. */
  | { readonly kind: 'lenders'; readonly lendableBlocks: number }
  /** The time is `nextUs`. */
  | { readonly kind: 'wake' }
  /** The activations of a chunk are here: the member before has computed its layers. Late, doubled or unknown: ignored. */
  | ({ readonly kind: 'activations'; readonly id: RequestId } & Activations)
  /** The member before computes this chunk now: a step over it may begin, and waits. Late, doubled, lost or unknown: ignored. */
  | ({ readonly kind: 'activationsPending'; readonly id: RequestId } & Activations)
  /** A request that outgrows this instance continues at `to`: send all of it. Doubled, ended or preempted: ignored. Lost: `outgrows` is repeated. */
  | {
      readonly kind: 'migrate';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly incarnation: number | undefined;
    }
  /** Answered with a `snapshot` effect: all cached blocks. */
  | { readonly kind: 'requestSnapshot' }
  /**
   * `result` is read before `step` returns and may be reused then. `stepUs`: the time of each step that ran; undefined: one step ran, and
   * ended now.
   */
  | {
      readonly kind: 'stepDone';
      readonly step: StepNumber;
      readonly result: Result;
      readonly stepUs?: ArrayLike<number>;
    }
  /** The step was aborted, and nothing of it counts. Cancels that arrived while it ran precede this event, or their requests are planned again. */
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
  /** KV events of an instance's cache. Late or doubled: ignored. After a lost one, a snapshot is requested. */
  | { readonly kind: 'kvEvents'; readonly instance: InstanceIndex; readonly batch: KvEventBatch }
  | { readonly kind: 'snapshot'; readonly instance: InstanceIndex; readonly snapshot: KvSnapshot }
  /** An instance failed, and what it held is lost. */
  | { readonly kind: 'instanceFailed'; readonly instance: InstanceIndex }
  /**
   * An instance has started, or started again, and holds nothing. `incarnation` counts its starts. `capacityTokens` and `role` are given where
   * they differ from those before.
   */
  | {
      readonly kind: 'instanceJoined';
      readonly instance: InstanceIndex;
      readonly incarnation: number;
      readonly capacityTokens?: number;
      readonly role?: InstanceRole;
    }
  /** The heartbeat of an instance. Late or doubled: ignored. After a lost one, the next says all. */
  | { readonly kind: 'report'; readonly instance: InstanceIndex; readonly report: InstanceReport }
  /** An instance has released a request, which can continue elsewhere. Lost: no report names the request any more. */
  | { readonly kind: 'released'; readonly instance: InstanceIndex; readonly id: RequestId; readonly why: string }
  /** A request may reach so many tokens, more than its instance holds: it needs a bigger one. Doubled: answered again once that is known. Of an ended request: ignored. */
  | { readonly kind: 'outgrows'; readonly instance: InstanceIndex; readonly id: RequestId; readonly tokens: number }
  /** The request continues there; no other instance holds anything of it. Late or doubled: ignored. */
  | { readonly kind: 'migrated'; readonly instance: InstanceIndex; readonly id: RequestId }
  /** The instance takes new requests in that role, and ends the ones that it has. Ignored where a role would be left without instances. */
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

/** Where blocks are that are not in the instance's own memory. */
export type LoadSource = InstanceIndex | 'ssd';

/** An instance that keeps what others have computed. */
export interface Store {
  readonly instance: InstanceIndex;
  /** The same at all instances that offer to it: equal prefixes go to one store. */
  readonly key: number;
}
