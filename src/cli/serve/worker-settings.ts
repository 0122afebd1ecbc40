// What the instance's thread is told at start.

import type { ModelOptions } from '../options/options.ts';
import type { LendingSettings } from './live-borrowing.ts';

export interface InstanceSettings {
  readonly model: string;
  readonly weights: ModelOptions['weights'];
  readonly inputs: ModelOptions['inputs'];
  readonly threads: number;
  readonly contextTokens: number;
  /** undefined: chosen by the context and the machine's memory. */
  readonly kvBytes: number | undefined;
  /** Instances that share the machine's memory. */
  readonly instances: number;
  /** What has landed is refused where its decode would be late. */
  readonly rechecks: boolean;
  /** Of the KV memory, for pinned prefixes. */
  readonly pinShare: number;
  readonly eviction: ModelOptions['eviction'];
  /** Prompts leave for where they are decoded once all of them is computed, not layer by layer: to compare with. */
  readonly sendsAtEnd?: boolean | undefined;
  /** Requests start when all of the prefix that they fetch is here: to compare with. */
  readonly awaitsPrefixes?: boolean | undefined;
  /** Where its steps are written down, if somebody wants to know. */
  readonly record?: SharedArrayBuffer | undefined;
  /** Where blocks are kept besides; undefined: what leaves the pool is gone. */
  readonly tiers?:
    | {
        /** Undefined: as much as prompts that are read of SSD pass through. */
        readonly hostBytes: number | undefined;
        /** `path` without what its files end with. */
        readonly ssd: { readonly path: string; readonly bytes: number } | undefined;
      }
    | undefined;
  /** Memory is lent to other instances and borrowed from them; undefined: each has its own. */
  readonly lending?: LendingSettings | undefined;
}
