// The settings of an instance thread.

import type { AttentionWorkersSettings } from '../options/attention-worker-settings.ts';
import type { LendingRules } from '../options/lending-rules.ts';
import type { ModelOptions } from '../options/options.ts';
import type { SparseSettings } from '../options/sparse-options.ts';

export interface InstanceSettings {
  readonly model: string;
  readonly weights: ModelOptions['weights'];
  readonly inputs: ModelOptions['inputs'];
  /** Why a form was chosen before the start, in words. */
  readonly inputsReason?: string | undefined;
  /** Undefined: f32 beside f32 inputs, else bf16. */
  readonly kvType?: ModelOptions['kvType'];
  readonly threads: number;
  readonly contextTokens: number;
  /** Undefined: by the context and the memory of the machine. */
  readonly kvBytes: number | undefined;
  /** Instances that share the memory of the machine. */
  readonly instances: number;
  /** Maximum predicted time of a step that decodes and prefills; undefined: the default. */
  readonly stepUs?: number | undefined;
  /** Share of the KV memory for pinned prefixes. */
  readonly pinShare: number;
  readonly eviction: ModelOptions['eviction'];
  /** Runs steps before it is ready, so that the first requests take the time of later ones. */
  readonly warmsUp: boolean;
  /** Reads the vocabulary of grammars before the first request that has one. */
  readonly warmsGrammars?: boolean | undefined;
  /** Sends prompts after their prefill, not layer by layer: a baseline for comparisons. */
  readonly sendsAtEnd?: boolean | undefined;
  /** Starts requests after their whole prefix has arrived: a baseline for comparisons. */
  readonly waitsForPrefixes?: boolean | undefined;
  /** The record of its steps, if requested. */
  readonly record?: SharedArrayBuffer | undefined;
  /** Tiers below the pool; undefined: evicted blocks are lost. */
  readonly tiers?:
    | {
        /** Undefined: only the memory that blocks from SSD pass through. */
        readonly hostBytes: number | undefined;
        /** `path` without the suffixes of its files. */
        readonly ssd: { readonly path: string; readonly bytes: number } | undefined;
      }
    | undefined;
  /** Undefined: the instance computes attention itself. */
  readonly attentionWorkers?: AttentionWorkersSettings | undefined;
  /** Layers that keep only some tokens; undefined: none. */
  readonly sparse?: SparseSettings | undefined;
  /** Memory lending with other instances; undefined: none. */
  readonly lending?: LendingSettings | undefined;
}

/** The memory of an instance that lends. */
export interface LenderMemory {
  /** Configured KV memory; undefined: by the context. */
  readonly kvBytes: number | undefined;
  /** Host memory for blocks of sequences. */
  readonly hostBytes: number;
}

export interface LendingSettings {
  /** (instances). `others`: they join later from other processes. */
  readonly lenders: readonly LenderMemory[] | 'others';
  readonly rules: LendingRules;
}
