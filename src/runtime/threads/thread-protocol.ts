// Messages between the owner of an instance's thread and that thread.

import type { TokenInstanceConfig } from '../../core/instance/token-instance.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { KvEventBatch, KvSnapshot } from '../../core/protocol/kv-events.ts';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type { GenerationEvent, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { Refusal } from '../../core/protocol/refusals.ts';
import type { LoadedModel } from '../../engine/load-model.ts';
import type { BusEndpoint } from '../bus/memory-bus.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import type { PagesAddress } from '../transfer/messenger.ts';

/** Root of block identities. */
export type BlockRoot = TokenInstanceConfig['root'];

export type ToInstance =
  | Extract<
      InstanceEvent,
      { kind: 'submit' | 'cancel' | 'requestSnapshot' | 'drain' | 'stores' | 'streamBroken' | 'pin' | 'unpin' }
    >
  /** Turns the recording of steps on or off. */
  | { readonly kind: 'traces'; readonly on: boolean }
  | { readonly kind: 'close' };

/** With peers in other processes, their messages too. */
export type ToThread =
  | ToInstance
  | { readonly kind: 'peerMessage'; readonly from: InstanceIndex; readonly wire: PeerWire };

export type FromInstance =
  | ReadyMessage
  /** The instance could not start: an error in one line. */
  | { readonly kind: 'startFailed'; readonly message: string }
  /** A line for the log of the process. */
  | { readonly kind: 'log'; readonly message: string }
  | OutputsMessage;

export interface ReadyMessage {
  readonly kind: 'ready';
  readonly description: InstanceDescription;
  readonly snapshot: InstanceSnapshot;
  readonly root: BlockRoot;
  /** Weights that other threads may share; undefined if they belong to one thread. */
  readonly shared: LoadedModel | undefined;
}

/** A step, or the fetch of a prefix from another instance; times since 1970. */
export interface StepTrace {
  readonly kind: 'step' | 'fetch';
  readonly startedUs: number;
  readonly endedUs: number;
  /** The step was aborted, or the fetch failed. */
  readonly aborted: boolean;
  readonly rows: readonly (readonly [id: RequestId, from: number, rows: number])[];
  /** Requests with their first rows in this step, and when the instance received them or their prompts; only where all steps are recorded. */
  readonly received?: readonly (readonly [id: RequestId, atUs: number])[];
}

/** Outputs of one iteration of the instance's loop, in order. */
export interface OutputsMessage {
  readonly kind: 'events';
  readonly events: readonly (readonly [id: RequestId, event: GenerationEvent])[];
  /** Undefined in most messages that hold tokens alone: the last one still holds, but for their counts. */
  readonly snapshot: InstanceSnapshot | undefined;
  /** Prefilled prompts that other instances decode. */
  readonly prefilled: readonly RequestId[];
  /** Requests that this instance has released, and the reasons: they can be retried, after a refusal elsewhere alone. */
  readonly released: readonly (readonly [id: RequestId, why: string, refusal?: Refusal | undefined])[];
  /** Recorded steps and fetches. */
  readonly steps: readonly StepTrace[];
  /** New states of pins. */
  readonly pins: readonly (readonly [id: PinId, state: PinState])[];
  /** KV events: blocks that the cache stored and removed. */
  readonly kvEvents: readonly KvEventBatch[];
  /** All cached blocks, on request. */
  readonly kvSnapshot: KvSnapshot | undefined;
}

/** Effective settings of the instance. */
export interface InstanceDescription {
  readonly weights: string;
  readonly inputs: string;
  readonly isa: string;
  readonly threads: number;
  readonly weightBytes: number;
  readonly kvBytes: number;
  readonly contextTokens: number;
  /** Tokens that fit into KV memory. */
  readonly capacityTokens: number;
  readonly role: InstanceRole;
  /** Number of blocks that it may lend, and the address of its remote attention server for other processes. */
  readonly lends?: { readonly blocks: number; readonly attentionAddress: string | undefined } | undefined;
  /** Layers of the model of which a group may run ranges; undefined: none, for example with sliding windows. */
  readonly stageLayers?: number | undefined;
  /** Requests start while their prefixes are still being received. */
  readonly aheadOfUse?: boolean;
  /** Undefined: no prefix can be fetched from the instance. */
  readonly fetchBytesPerToken: number | undefined;
  /** Address at which pages of other processes are received, as HOST:PORT. */
  readonly pagesAddress?: string | undefined;
  /** Capacity of the tiers, and the blocks found on SSD at the start. */
  readonly tiers?:
    | {
        readonly blockBytes: number;
        readonly hostBlocks: number;
        readonly ssdBlocks: number;
        readonly found: number;
      }
    | undefined;
}

/** The workerData of an instance's thread. */
export interface InstanceThreadData<Settings> {
  readonly settings: Settings;
  /** Endpoint of the bus of the process, and the instance's address there. */
  readonly endpoint: BusEndpoint;
  readonly address: string;
  /** Flags of its StepInterrupt and its StepProgress. */
  readonly abort: Int32Array;
  readonly role: InstanceRole;
  /** Counts the starts of the instance, from 1. */
  readonly incarnation: number;
  /** Prompts of others may be received, now or after a role switch. */
  readonly receivesPrompts: boolean;
  /** Where its peers are, with which it exchanges prompts. */
  readonly peers: 'none' | 'threads' | 'processes';
  /** Its lender number; undefined: no memory is lent. */
  readonly lender?: InstanceIndex | undefined;
  /** Address of its pages, and the token of senders; undefined: pages are copied inside the process. */
  readonly pages: PagesAddress | undefined;
  /** Steps are recorded. */
  readonly traces: boolean;
  /** Four words that key block identities: the same for all instances of a cluster. */
  readonly hashKey: Uint32Array;
  /** Weights that another thread has loaded, and their root of block identities. */
  readonly loaded: { readonly model: LoadedModel; readonly root: BlockRoot } | undefined;
}
