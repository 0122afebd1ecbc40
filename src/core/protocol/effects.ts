// Effects: orders of an instance or a conductor to its driver, as plain data.

import type { Step } from '../../util/step.ts';
import type { Activations, PeerMessage, PipelineGroup, PrefixFetch, PrefixOffer } from './events.ts';
import type { Grammar } from './grammar.ts';
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

/** For the log: the event was late, duplicate or unknown, and changed nothing. */
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
   * Run the step, or up to `stepsMax` steps with the same rows, each one token further. Answer with stepDone,
   * stepAborted or stepFailed. The arrays of `plan` are valid until that answer.
   */
  | {
      readonly kind: 'runStep';
      readonly step: StepNumber;
      readonly plan: Plan;
      readonly predictedUs: number;
      readonly shape: StepShape;
      readonly stepsMax: number;
      /** All rows are those of batch jobs: the step yields to interactive requests. */
      readonly background: boolean;
      /**
       * Tokens of KV that the step loads from host memory and stores there: 0 for a step that only decodes.
       */
      readonly loadTokens: number;
      readonly storeTokens: number;
      /** The layers that the step runs; undefined: all. */
      readonly range: LayerRange | undefined;
      /**
       * The next member, which receives the activations of a range if the step counts. The driver may send them before
       * `sendActivations`.
       */
      readonly activationsOut: { readonly to: InstanceIndex; readonly chunk: Activations } | undefined;
      /** Attention over keys at other instances; undefined: none. */
      readonly remote: readonly RemoteWork[] | undefined;
    }
  /** End the run with its current step, and answer stepDone then. */
  | { readonly kind: 'endStepRun'; readonly step: StepNumber }
  /** Set the abort word of the step, if it still runs. It may still end as stepDone. */
  | { readonly kind: 'abortStep'; readonly step: StepNumber }
  | { readonly kind: 'send'; readonly to: InstanceIndex; readonly message: PeerMessage<Request> }
  /**
   * Send keys and values of `tokens` prompt tokens from `from` on: now, or layer by layer as `step` computes them.
   * `firstEvents` come with the last tokens: when all have arrived, the other instance gets `promptReceived` with these
   * events. `range`: of these layers; undefined: of all.
   */
  | {
      readonly kind: 'stream';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      /** The first token, and the number of prompt tokens. */
      readonly from: number;
      readonly promptTokens: number;
      readonly tokens: number;
      /** Blocks of the prompt, valid until the machine's next step. */
      readonly table: BlockTableView;
      readonly step: StepNumber | undefined;
      readonly firstEvents: readonly GenerationEvent[] | undefined;
      readonly range: LayerRange | undefined;
    }
  /**
   * Activations of a prompt will arrive from the member that runs the layers before these. Precedes the
   * `joinedPipeline` that announces it.
   */
  | { readonly kind: 'expectActivations'; readonly id: RequestId; readonly from: InstanceIndex }
  /**
   * Send the activations of a chunk to the member that runs the next layers, unless the step has sent them: it gets
   * `activations`.
   */
  | {
      readonly kind: 'sendActivations';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly chunk: Activations;
    }
  /**
   * The sender of a hand-off may write to these pages from now on, in the order of `ReceiveLayout`. Precedes
   * `reserved`.
   */
  | { readonly kind: 'openReceiveBuffer'; readonly id: RequestId; readonly pages: Int32Array }
  /** The sender may not write any more. Carried out once no write is in progress. */
  | { readonly kind: 'closeReceiveBuffer'; readonly id: RequestId }
  /**
   * Send a cached prefix to another instance. At its end this instance gets `prefixSent`; on arrival the other one gets
   * `loaded` to `blocks`.
   */
  | {
      readonly kind: 'streamPrefix';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly tokens: number;
      readonly blocks: number;
      /** Of these layers; undefined: of all. */
      readonly range: LayerRange | undefined;
      /** Where contents are real: (blocks, layers of the range) pages of the pool that hold it. */
      readonly pages?: Int32Array;
    }
  /**
   * Where contents are real: another instance may write the prefix that is fetched next to these pages, (blocks, layers
   * of the range). `ahead`: their first block, if steps may run before all blocks have arrived; `arriving` then
   * announces the start.
   */
  | {
      readonly kind: 'expectPrefix';
      readonly id: RequestId;
      readonly from: InstanceIndex;
      readonly pages: Int32Array;
      readonly ahead?: number | undefined;
    }
  /**
   * Where contents are real: copy pages of the pool or of host memory, one by one, before any later effect. Copies a
   * cached prefix into the blocks of a member's layers.
   */
  | { readonly kind: 'copyPrefix'; readonly from: Int32Array; readonly to: Int32Array }
  /** The other instance may not write any more. Carried out once no write is in progress. */
  | { readonly kind: 'closePrefix'; readonly id: RequestId }
  /**
   * Read `blocks` blocks of SSD into host memory, or layer by layer into `pages` of the pool, (blocks, layers). All
   * blocks of the prompt before `to` are then available. Answer with `loaded`. `what`: the blocks, where contents are
   * real.
   */
  | {
      readonly kind: 'readSsd';
      readonly id: RequestId;
      readonly blocks: number;
      readonly to: number;
      readonly what?: readonly SsdBlock[];
      readonly pages?: Int32Array | undefined;
    }
  /** Where contents are real: cancel the read. Carried out once it writes nothing any more. */
  | { readonly kind: 'stopRead'; readonly id: RequestId }
  /**
   * Write `blocks` blocks of host memory to SSD, in order. Answer with `ssdWritten`. `what`: the blocks, where contents
   * are real.
   */
  | { readonly kind: 'writeSsd'; readonly blocks: number; readonly what?: readonly SsdBlock[] }
  /** Where contents are real: erase a slot of SSD. */
  | { readonly kind: 'eraseSsd'; readonly slot: SlotId }
  /**
   * Where contents are real: copy pages of the pool, (blocks, layers) both, before any later effect. The next step may
   * run meanwhile, layer by layer.
   */
  | { readonly kind: 'loadPages'; readonly from: Int32Array; readonly to: Int32Array }
  /**
   * Where contents are real: copy pages of the pool, (blocks, layers) both, that the next step computes, each layer once
   * it is computed. They are copied when the event of the step's end is delivered; of an aborted step they are not used.
   */
  | { readonly kind: 'storePages'; readonly from: Int32Array; readonly to: Int32Array }
  /** Where contents are real: copy pages of the pool before any later effect. */
  | { readonly kind: 'copyPages'; readonly from: Int32Array; readonly to: Int32Array }
  /** Cancel the rest of the stream. */
  | {
      readonly kind: 'stopStream';
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly of: 'handoff' | 'prefix';
    }
  /**
   * From now on the stream of a prompt reads no page from token `from` on: those tokens move, or are computed again.
   * The next `stream` begins with the first token that is not acknowledged, or with `from`.
   */
  | { readonly kind: 'haltStream'; readonly id: RequestId; readonly to: InstanceIndex; readonly from: number }
  /** Compile the grammar of a request, outside the instance's thread. Answer with `grammarCompiled`. */
  | { readonly kind: 'compileGrammar'; readonly id: RequestId; readonly grammar: Grammar }
  /** The request leaves: free the state of its grammar. */
  | { readonly kind: 'releaseGrammar'; readonly id: RequestId }
  /** For the conductor: the prompt is computed. */
  | { readonly kind: 'prefilled'; readonly id: RequestId }
  /** For the conductor: a request that outgrew another instance continues here. Lost: a report names the request. */
  | { readonly kind: 'migrated'; readonly id: RequestId }
  /** For the conductor: the request was released here and can continue elsewhere. */
  | { readonly kind: 'released'; readonly id: RequestId; readonly why: string }
  /** For conductors: the heartbeat. */
  | { readonly kind: 'report'; readonly report: InstanceReport }
  /** For the conductor: the state of a pin. */
  | { readonly kind: 'pinUpdated'; readonly id: PinId; readonly state: PinState }
  /** For conductors: KV events of the block cache. The arrays are valid until the machine's next step. */
  | { readonly kind: 'kvEvents'; readonly batch: KvEventBatch }
  | { readonly kind: 'snapshot'; readonly snapshot: KvSnapshot }
  /** For the log: a step failed, and with it its requests. */
  | { readonly kind: 'fault'; readonly message: string };

export type ConductorEffect<Request = GenerationRequest> =
  | Emit
  | Ignored
  /**
   * An attempt of the request `id` begins: submit `request`, which has the name of the attempt, to an instance. The
   * incarnations are those expected, if known.
   */
  | {
      readonly kind: 'forward';
      readonly id: RequestId;
      readonly instance: InstanceIndex;
      readonly request: Request;
      readonly decodeAt: InstanceIndex | undefined;
      readonly predicted: Prediction | undefined;
      /** Leading tokens of the prompt that are predicted to be cached when it starts. */
      readonly cachedTokens: number;
      readonly prefix: PrefixFetch | undefined;
      /** A proactive copy of a hot prefix that the instance has. */
      readonly offer: PrefixOffer | undefined;
      readonly incarnation?: number | undefined;
      readonly decodeIncarnation?: number | undefined;
      readonly group: PipelineGroup | undefined;
    }
  /** For the request log: the placement of an attempt, and which blocks of the prompt its instance found. */
  | { readonly kind: 'placed'; readonly id: RequestId; readonly placement: PlacementTrace }
  | { readonly kind: 'found'; readonly id: RequestId; readonly blocks: PromptBlockCounts }
  /** With `interrupt`, set the abort word as well: the running step is likely the request's own prefill. */
  | { readonly kind: 'cancel'; readonly instance: InstanceIndex; readonly id: RequestId; readonly interrupt: boolean }
  | ({ readonly kind: 'pin'; readonly instance: InstanceIndex } & PinOrder<Request>)
  | { readonly kind: 'unpin'; readonly instance: InstanceIndex; readonly id: PinId }
  /** For the log. */
  | { readonly kind: 'roleSwitched'; readonly instance: InstanceIndex; readonly role: InstanceRole }
  /** For the client that pinned it. */
  | {
      readonly kind: 'pinUpdated';
      readonly id: PinId;
      readonly instance: InstanceIndex | undefined;
      readonly state: PinState;
    }
  /** KV events of the instance are missing: request a snapshot. */
  | { readonly kind: 'requestSnapshot'; readonly instance: InstanceIndex }
  | { readonly kind: 'drained' };

/** Orders to a fleet of standby instances. Only the simulator has such a fleet: the baseline for lending. */
export type StandbyEffect =
  /** The request continues on `to`, which is running: send `migrate` to its current instance. */
  | {
      readonly kind: 'migrate';
      readonly instance: InstanceIndex;
      readonly id: RequestId;
      readonly to: InstanceIndex;
      readonly incarnation: number | undefined;
    }
  /** Start the instance and load the model. Answer with `instanceJoined` when it serves. */
  | { readonly kind: 'startInstance'; readonly instance: InstanceIndex };

/** For the conductor: the request may reach `tokens` tokens, more than fit here. Lost: repeated with every report. */
export interface Outgrows {
  readonly kind: 'outgrows';
  readonly id: RequestId;
  readonly tokens: number;
}
