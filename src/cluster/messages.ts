// What the machines hear: every event that an instance or a conductor reacts to, as plain data.
import type { BlockJournal, BlockSnapshot } from '../policy/blocks/block-journal.ts';
import type { StepResult } from '../util/step.ts';
import type { GenerationEvent, GenerationRequest, RequestId } from './ports.ts';

/** Steps are numbered by the instance that plans them. */
export type StepNumber = number;

/** Index into the conductor's list of instances. */
export type InstanceIndex = number;

/** What instances tell each other of a request that one prefills and another decodes. Every message may come late or twice. */
export type PeerMessage<Request = GenerationRequest> =
  /** To the decoding one, when prefill starts: keep memory for the prompt. Doubled: answered as before, or `taken` where the prompt is there already. Lost: its request waits until it is cancelled. */
  | { readonly kind: 'reserve'; readonly id: RequestId; readonly request: Request }
  /** To the prefilling one: send. Of a request that is gone it is answered with `release`, so that no memory stays kept for nobody. */
  | { readonly kind: 'reserved'; readonly id: RequestId }
  /** To the prefilling one: there will never be memory for it; the request fails. */
  | { readonly kind: 'declined'; readonly id: RequestId }
  /** To the prefilling one: all of it is here, let go. Unknown: the request was cancelled; nothing to do. */
  | { readonly kind: 'taken'; readonly id: RequestId }
  /** To the decoding one: nothing will come, let go. Unknown or late: nothing to do. */
  | { readonly kind: 'release'; readonly id: RequestId };

/** To an instance. An event about a step that is not in flight, or about a request that is not live, is ignored. */
export type InstanceEvent<Request = GenerationRequest, Result = StepResult> =
  /** With `decodeAt`, only the prompt is computed here: what comes then happens there. */
  | { readonly kind: 'submit'; readonly request: Request; readonly decodeAt?: InstanceIndex | undefined }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  | { readonly kind: 'peer'; readonly from: InstanceIndex; readonly message: PeerMessage<Request> }
  /** A stream from another instance has ended: all keys and values of a prompt are here. `held` is what its client is to hear first. */
  | {
      readonly kind: 'landed';
      readonly from: InstanceIndex;
      readonly id: RequestId;
      readonly held: readonly GenerationEvent[];
    }
  /** Tell all blocks that are held: answered with a `snapshot` effect. */
  | { readonly kind: 'tellBlocks' }
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
      readonly kind: 'heard';
      readonly instance: InstanceIndex;
      readonly id: RequestId;
      readonly event: GenerationEvent;
    }
  /** The prompt is computed and goes to the instance that decodes it. */
  | { readonly kind: 'prefilled'; readonly instance: InstanceIndex; readonly id: RequestId }
  /** What an instance's cache stored and dropped. Late and doubled ones change nothing; after a lost one a snapshot is asked for. */
  | { readonly kind: 'journal'; readonly instance: InstanceIndex; readonly journal: BlockJournal }
  | { readonly kind: 'snapshot'; readonly instance: InstanceIndex; readonly snapshot: BlockSnapshot }
  /** An instance is gone with all it had. */
  | { readonly kind: 'instanceLost'; readonly instance: InstanceIndex }
  /** Take nothing more; say when all is done. */
  | { readonly kind: 'drain' };
