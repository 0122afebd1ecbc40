// What the machines want done: every effect of an instance or a conductor, as plain data for a driver.

import type { Step } from '../../util/step.ts';
import type { Activations, PeerMessage, PipelineGroup, PrefixFetch } from './events.ts';
import type { InstanceIndex, PinId, RequestId, SlotId, StepNumber } from './ids.ts';
import type { InstanceReport, InstanceRole } from './instance-report.ts';
import type { BlockTableView, KvEventBatch, KvSnapshot, SsdBlock } from './kv-events.ts';
import type { BorrowerEffect, RemoteWork } from './lending-effects.ts';
import type { PinOrder, PinState } from './pin-order.ts';
import type { GenerationEvent, GenerationRequest } from './ports.ts';
import type { PlacementTrace, Prediction, PromptBlockCounts } from './request-trace.ts';
import type { LayerRange, StepShape } from './step-shape.ts';

interface Emit {
  readonly kind: 'emit';
  readonly id: RequestId;
  readonly event: GenerationEvent;
}

/** For the log: an event came late, twice or about nothing known; it changed nothing. */
interface Ignored {
  readonly kind: 'ignored';
  readonly message: string;
}

export type InstanceEffect<Plan = Step, Request = GenerationRequest> =
  | Emit
  | Ignored
  | BorrowerEffect
  | Outgrows
  /**
   * Run it, or up to `stepsMax` steps of its rows one after another, each a token further; answer with stepDone, stepAborted or stepFailed.
   * The arrays of `plan` are reused: valid until that answer.
   */
  | {
      readonly kind: 'runStep';
      readonly step: StepNumber;
      readonly plan: Plan;
      readonly predictedUs: number;
      readonly shape: StepShape;
      readonly stepsMax: number;
      /** All its rows are those of batch jobs: it stops for whoever waits for an answer. */
      readonly background: boolean;
      /** Tokens whose keys and values come from host memory for it, and those of its own that go there: none of a step that only decodes. */
      readonly loadTokens: number;
      readonly storeTokens: number;
      /** Of the layers it runs these alone; undefined: all. */
      readonly range: LayerRange | undefined;
      /** Where what these make of a chunk goes if the step counts, as `pass` says then: so that it may leave at once. */
      readonly passes: { readonly to: InstanceIndex; readonly chunk: Activations } | undefined;
      /** Attention over keys that lie with other instances; undefined: there are none. */
      readonly remote: readonly RemoteWork[] | undefined;
    }
  /** Answer stepDone when the step of the run ends that runs now. */
  | { readonly kind: 'endRun'; readonly step: StepNumber }
  /** Set the abort word of this step, if it still runs. It may end as stepDone all the same. */
  | { readonly kind: 'abortStep'; readonly step: StepNumber }
  | { readonly kind: 'send'; readonly to: InstanceIndex; readonly message: PeerMessage<Request> }
  /**
   * Keys and values of `tokens` more prompt tokens go to another instance: at once, or layer by layer as `step` computes them. With `held` they
   * are the last ones: when all have arrived, tell the other instance `landed`, with `held`. Those of a `range` of the layers, or of all.
   */
  | {
      readonly kind: 'stream';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      /** The first of them, of how many the prompt has. */
      readonly from: number;
      readonly promptTokens: number;
      readonly tokens: number;
      /** The prompt's blocks, as they are until the machine's next step. */
      readonly table: BlockTableView;
      readonly step: StepNumber | undefined;
      readonly held: readonly GenerationEvent[] | undefined;
      readonly range: LayerRange | undefined;
    }
  /** Chunks of a prompt will come from the member that runs the layers before these: before the `enlisted` that says so is sent. */
  | { readonly kind: 'expectActivations'; readonly id: RequestId; readonly from: InstanceIndex }
  /** What a range of the layers made of a chunk goes to the member of a group that runs the next, unless it has left with the step: tell it `activations`. */
  | {
      readonly kind: 'sendActivations';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly chunk: Activations;
    }
  /** The other instance of a hand-off may write to these pages, in the order of `LandingLayout`: before the `reserved` that tells it so is sent. */
  | { readonly kind: 'openReceiveBuffer'; readonly id: RequestId; readonly pages: Int32Array }
  /** It may write no more, and is not writing any more when this has been carried out. */
  | { readonly kind: 'closeReceiveBuffer'; readonly id: RequestId }
  /** Cached keys and values go to another instance, which has a request that starts behind them. When they have left, tell this one `prefixSent`; when they have arrived, the other one `loaded` to `blocks`. */
  | {
      readonly kind: 'streamPrefix';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly tokens: number;
      readonly blocks: number;
      /** Of these layers alone; undefined: of all. */
      readonly range: LayerRange | undefined;
      /** Where contents are real: (blocks, layers, or those of the range) pages of the pool where they are. */
      readonly pages?: Int32Array;
    }
  /** Where contents are real: another instance may write the prefix that is about to be asked for to these pages, (blocks, layers, or those of the range that is asked for). `ahead`: of which block they begin, where steps may run meanwhile: tell `arriving` too. */
  | {
      readonly kind: 'expectPrefix';
      readonly id: RequestId;
      readonly from: InstanceIndex;
      readonly pages: Int32Array;
      readonly ahead?: number | undefined;
    }
  /** Where contents are real: copy pages of the pool, or of host memory, one by one, before anything that comes after: what a member of a group has of a prompt goes to the room of its layers. */
  | { readonly kind: 'copyPrefix'; readonly from: Int32Array; readonly to: Int32Array }
  /** It may write no more, and is not writing any more when this has been carried out. */
  | { readonly kind: 'closePrefix'; readonly id: RequestId }
  /** Read `blocks` blocks of SSD into host memory, or layer by layer to `pages` of the pool, (blocks, layers): then all of the request's prompt before block `to` is there. Answer with `loaded`. `what`: which, where contents are real. */
  | {
      readonly kind: 'readSsd';
      readonly id: RequestId;
      readonly blocks: number;
      readonly to: number;
      readonly what?: readonly SsdBlock[];
      readonly pages?: Int32Array | undefined;
    }
  /** Where contents are real: nothing is written to host memory or the pool for this read any more when this has been carried out. */
  | { readonly kind: 'stopRead'; readonly id: RequestId }
  /** Write so many blocks that host memory had no room for, in the order in which they were told. Answer with `ssdWritten`. `what`: which, where contents are real. */
  | { readonly kind: 'writeSsd'; readonly blocks: number; readonly what?: readonly SsdBlock[] }
  /** Where contents are real: a slot of SSD is to hold nothing any more. */
  | { readonly kind: 'eraseSsd'; readonly slot: SlotId }
  /** Where contents are real: copy pages of the pool, (blocks, layers) both: before anything that comes after, but layer by layer while the step runs that this is followed by. */
  | { readonly kind: 'loadPages'; readonly from: Int32Array; readonly to: Int32Array }
  /** Where contents are real: copy pages of the pool, before anything that comes after. */
  | { readonly kind: 'copyPages'; readonly from: Int32Array; readonly to: Int32Array }
  /** What is under way of this stream may be dropped: nobody wants it any more. */
  | {
      readonly kind: 'stopStream';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly of: 'handoff' | 'prefix';
    }
  /**
   * Nothing is read any more for the stream of a prompt once this has been carried out: its tokens from `from` on lie elsewhere, or are computed
   * again. Those before stay where they are. The next `stream` begins with the first token that is not known to have arrived, or with `from`.
   */
  | { readonly kind: 'haltStream'; readonly id: RequestId; readonly to: InstanceIndex; readonly from: number }
  /** For the conductor: the prompt is computed. */
  | { readonly kind: 'prefilled'; readonly id: RequestId }
  /** For the conductor: a request that outgrew another instance goes on here. Lost: a report names it. */
  | { readonly kind: 'migrated'; readonly id: RequestId }
  /** For the conductor: it could be gone on with elsewhere; here nothing is left of it. */
  | { readonly kind: 'released'; readonly id: RequestId; readonly why: string }
  /** For conductors: what is here. */
  | { readonly kind: 'report'; readonly report: InstanceReport }
  /** For the conductor: what became of a pin. */
  | { readonly kind: 'pinUpdated'; readonly id: PinId; readonly state: PinState }
  /** For conductors: what the block cache stored and dropped. The arrays are valid until the machine's next step. */
  | { readonly kind: 'journal'; readonly journal: KvEventBatch }
  | { readonly kind: 'snapshot'; readonly snapshot: KvSnapshot }
  /** For the log: a step failed and took its requests with it. */
  | { readonly kind: 'fault'; readonly message: string };

export type ConductorEffect<Request = GenerationRequest> =
  | Emit
  | Ignored
  /** A try of the request `id` begins: `request` goes to an instance under the name that it has there. Lives: which starts are meant, where they are known. */
  | {
      readonly kind: 'forward';
      readonly id: RequestId;
      readonly instance: InstanceIndex;
      readonly request: Request;
      readonly decodeAt: InstanceIndex | undefined;
      readonly predicted: Prediction | undefined;
      readonly prefix: PrefixFetch | undefined;
      readonly incarnation?: number | undefined;
      readonly decodeIncarnation?: number | undefined;
      readonly group: PipelineGroup | undefined;
    }
  /** For whoever keeps accounts: where a try was to go, and what its instance found of the prompt. */
  | { readonly kind: 'placed'; readonly id: RequestId; readonly account: PlacementTrace }
  | { readonly kind: 'found'; readonly id: RequestId; readonly blocks: PromptBlockCounts }
  /** With `interrupt`, set the abort word too: the step that runs is likely the request's own prefill. */
  | { readonly kind: 'cancel'; readonly instance: InstanceIndex; readonly id: RequestId; readonly interrupt: boolean }
  | ({ readonly kind: 'pin'; readonly instance: InstanceIndex } & PinOrder<Request>)
  | { readonly kind: 'unpin'; readonly instance: InstanceIndex; readonly id: PinId }
  /** For the log. */
  | { readonly kind: 'roleSwitched'; readonly instance: InstanceIndex; readonly role: InstanceRole }
  /** For whoever pinned it. */
  | {
      readonly kind: 'pinUpdated';
      readonly id: PinId;
      readonly instance: InstanceIndex | undefined;
      readonly state: PinState;
    }
  /** Journals of the instance are missing: have it tell all blocks that it holds. */
  | { readonly kind: 'requestSnapshot'; readonly instance: InstanceIndex }
  | { readonly kind: 'drained' };

/** What a fleet of standby instances requires. Only the simulator has such a fleet: it is the baseline that lending is compared with. */
export type StandbyEffect =
  /** The request continues on `to`, which runs: send `migrate` to its instance. */
  | {
      readonly kind: 'migrate';
      readonly instance: InstanceIndex;
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly incarnation: number | undefined;
    }
  /** Start the instance and load the model. Answer with `instanceJoined` when it serves. */
  | { readonly kind: 'startInstance'; readonly instance: InstanceIndex };

/** For the conductor: the request may come to so many tokens, more than fit here. Lost: said again with every report. */

export interface Outgrows {
  readonly kind: 'outgrows';
  readonly id: RequestId;
  readonly tokens: number;
}
