// Messages between the gateway's thread and an instance's thread.
import type { GenerationEvent, GenerationRequest, InstanceSnapshot, RequestId } from '../cluster/ports.ts';

export type ToInstance =
  | { readonly kind: 'submit'; readonly request: GenerationRequest }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  | { readonly kind: 'close' };

export type FromInstance =
  | { readonly kind: 'ready'; readonly description: InstanceDescription; readonly snapshot: InstanceSnapshot }
  /** The instance could not start: one line that says why. */
  | { readonly kind: 'unable'; readonly message: string }
  /** What one turn of the instance's loop brought, in order. */
  | {
      readonly kind: 'events';
      readonly events: readonly (readonly [id: RequestId, event: GenerationEvent])[];
      readonly snapshot: InstanceSnapshot;
    };

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
}

/** What the thread is started with, beside the settings of its own. */
export interface InstanceThreadData<Settings> {
  readonly settings: Settings;
  readonly abort: SharedArrayBuffer;
}
