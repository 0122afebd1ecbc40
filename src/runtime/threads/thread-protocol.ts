// Messages between the gateway's thread and the threads of instances.

import type { TokenInstanceConfig } from '../../core/instance/token-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type { GenerationEvent, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { LoadedModel } from '../../engine/load-model.ts';
import type { BusEndpoint } from '../bus/memory-bus.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import type { PagesAddress } from '../transfer/messenger.ts';

export type KvEventBatch = Extract<InstanceEffect, { kind: 'journal' }>['journal'];
export type KvSnapshot = Extract<InstanceEffect, { kind: 'snapshot' }>['snapshot'];
/** What the identities of blocks chain from. */
export type BlockRoot = TokenInstanceConfig['root'];

export type ToInstance =
  | Extract<
      InstanceEvent,
      { kind: 'submit' | 'cancel' | 'requestSnapshot' | 'stores' | 'streamBroken' | 'pin' | 'unpin' }
    >
  /** Steps are recorded from now on, or no more. */
  | { readonly kind: 'traces'; readonly on: boolean }
  | { readonly kind: 'close' };

/** What a thread is told whose peers are in other processes: the same, and what those say. */
export type ToThread =
  | ToInstance
  | { readonly kind: 'peerMessage'; readonly from: InstanceIndex; readonly wire: PeerWire };

export type FromInstance =
  | ReadyMessage
  /** The instance could not start: one line that says why. */
  | { readonly kind: 'startFailed'; readonly message: string }
  /** For the log of its process. */
  | { readonly kind: 'log'; readonly message: string }
  | OutputsMessage;

export interface ReadyMessage {
  readonly kind: 'ready';
  readonly description: InstanceDescription;
  readonly snapshot: InstanceSnapshot;
  readonly root: BlockRoot;
  /** What the others of the process may use as well; undefined where weights belong to one thread. */
  readonly shared: LoadedModel | undefined;
}

/** A step that ran, or a prefix that came from another instance; times since 1970. */
export interface StepTrace {
  readonly kind: 'step' | 'fetch';
  readonly startedUs: number;
  readonly endedUs: number;
  /** A step was stopped, a prefix did not come. */
  readonly aborted: boolean;
  readonly rows: readonly (readonly [id: RequestId, from: number, rows: number])[];
}

/** What one turn of the instance's loop brought, in order. */
export interface OutputsMessage {
  readonly kind: 'events';
  readonly events: readonly (readonly [id: RequestId, event: GenerationEvent])[];
  readonly snapshot: InstanceSnapshot;
  /** Prompts that are computed and go on elsewhere. */
  readonly prefilled: readonly RequestId[];
  /** Requests that it could have gone on with, were it not for others, and why it does not. */
  readonly released: readonly (readonly [id: RequestId, why: string])[];
  /** Its steps, and what it fetched, where they are recorded. */
  readonly steps: readonly StepTrace[];
  /** What became of pins. */
  readonly pins: readonly (readonly [id: PinId, state: PinState])[];
  /** What its cache stored and dropped, where conductors are told. */
  readonly kvEvents: readonly KvEventBatch[];
  /** All that it holds, if it was asked. */
  readonly kvSnapshot: KvSnapshot | undefined;
}

/** What is in force, for the line printed at start. */
export interface InstanceDescription {
  readonly weights: string;
  readonly inputs: string;
  readonly isa: string;
  readonly threads: number;
  readonly weightBytes: number;
  readonly kvBytes: number;
  readonly contextTokens: number;
  /** Tokens whose keys and values fit into the KV memory at once. */
  readonly capacityTokens: number;
  readonly role: InstanceRole;
  /** Of a settlement, what it can take in at once; undefined where nothing is lent. */
  readonly stagingBlocks?: number | undefined;
  /** Blocks that it may lend, and where instances of other processes have attention computed over them, where there are such. */
  readonly lends?: { readonly blocks: number; readonly attentionAddress: string | undefined } | undefined;
  /** Layers of the model, of which a group may run ranges; undefined: some of them keep a window alone. */
  readonly stageLayers?: number | undefined;
  /** Requests start while their prefixes are still on their way. */
  readonly startsAhead?: boolean;
  /** Undefined: no prefix can be fetched from it. */
  readonly fetchBytesPerToken: number | undefined;
  /** Blocks below the pool, and those that SSD had at the start. */
  readonly tiers?:
    | {
        readonly blockBytes: number;
        readonly hostBlocks: number;
        readonly ssdBlocks: number;
        readonly found: number;
      }
    | undefined;
}

/** What the thread is started with, beside the settings of its own. */
export interface InstanceThreadData<Settings> {
  readonly settings: Settings;
  /** On the bus of the process, and what the instance is called there. */
  readonly endpoint: BusEndpoint;
  readonly address: string;
  /** Of its StepWords. */
  readonly abort: Int32Array;
  readonly role: InstanceRole;
  /** Which start of the instance this is: 1, 2, 3... */
  readonly incarnation: number;
  /** Prompts of others may land there, now or once it has another role. */
  readonly receivesPrompts: boolean;
  /** Where those are that this one hands prompts to, or takes them from. */
  readonly peers: 'none' | 'threads' | 'processes';
  /** Its number among those that lend and borrow; undefined: nobody does. */
  readonly lender?: InstanceIndex | undefined;
  /** Where pages from them arrive, and the secret of those who may send some; undefined: they are copied inside the process. */
  readonly pages: PagesAddress | undefined;
  /** Steps are recorded. */
  readonly traces: boolean;
  /** Four words that key the identities of blocks: the same for all instances of a cluster. */
  readonly hashKey: Uint32Array;
  /** Weights that another thread has loaded, with what their blocks chain from. */
  readonly loaded: { readonly model: LoadedModel; readonly root: BlockRoot } | undefined;
}
