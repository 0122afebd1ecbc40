// Heartbeats from an instance to its conductor, and the roles of instances.

import type { RequestId } from './ids.ts';

/**
 * Heartbeat, sent at a fixed interval. A late or duplicate one changes nothing. Each is complete, so a lost one is not
 * repeated.
 */
export interface InstanceReport {
  readonly incarnation: number;
  /** 1, 2, 3... in each incarnation. */
  readonly number: number;
  /** Number of the last KV event batch sent. */
  readonly kvEventNumber: number;
  readonly requests: readonly ReportedRequest[];
  /** Requests of other gateways on the instance; undefined: there is no other gateway. */
  readonly others?: PlacedLoad | undefined;
}

/** An external engine, as far as the simulator distinguishes engines. */
export interface EngineIdentity {
  readonly kind: EngineKind;
  /** It schedules by the priority of requests. */
  readonly takesPriorities: boolean;
}

export const engineKinds = ['vllm', 'sglang'] as const;
export type EngineKind = (typeof engineKinds)[number];

/** Load that conductors have placed on an instance. */
export interface PlacedLoad {
  /** Prompts without a first token, one entry for each priority and tenant. */
  readonly prefills: readonly PlacedPrefills[];
  /** Requests that decode, or for whose prompts memory is promised, and their tokens. */
  readonly rows: number;
  readonly tokens: number;
}

/** Prompts of one priority and tenant without a first token. */
export interface PlacedPrefills {
  readonly priority: number;
  /** Undefined: of several tenants, or not reported. */
  readonly tenant?: string;
  readonly prompts: number;
  /** Their tokens without those that are cached, as predicted before the start and as found after it. */
  readonly tokens: number;
  /** Keys that these tokens attend to, summed over the tokens; undefined: not reported. */
  readonly keyRows?: number;
}

/** A request as its instance counts it. */
export interface PlacedRequest {
  readonly priority: number;
  /** Undefined: the request has none. */
  readonly tenant: string | undefined;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  /** Output tokens sent to the client. */
  readonly outputs: number;
  /**
   * prefill: without a first token here. handingOff: its prompt is computed, and waits for its decode instance or moves there. decode: it
   * decodes here, or memory is promised to its prompt.
   */
  readonly phase: 'prefill' | 'handingOff' | 'decode';
}

/** Tenants with an entry of their own in a report. Prompts of further ones are counted together. */
const reportedTenantsMax = 256;

export function placedLoad(requests: Iterable<PlacedRequest>): PlacedLoad {
  const prefills = new Map<string, PrefillSum>();
  const tenants = new Set<string>();
  let [rows, rowTokens] = [0, 0];
  for (const { priority, tenant, promptTokens, cachedTokens, outputs, phase } of requests) {
    if (phase === 'handingOff') continue;
    if (phase === 'decode') {
      rows++;
      rowTokens += promptTokens + outputs;
      continue;
    }
    if (tenant !== undefined && tenants.size < reportedTenantsMax) tenants.add(tenant);
    const own = tenant !== undefined && tenants.has(tenant) ? { tenant } : undefined;
    const key = `${priority}\n${own === undefined ? '' : `of ${own.tenant}`}`;
    const sum = prefills.get(key) ?? { priority, ...own, prompts: 0, tokens: 0, keyRows: 0 };
    const tokens = Math.max(1, promptTokens - cachedTokens);
    sum.prompts++;
    sum.tokens += tokens;
    sum.keyRows += tokens * cachedTokens + (tokens * (tokens + 1)) / 2;
    prefills.set(key, sum);
  }
  return { prefills: [...prefills.values()], rows, tokens: rowTokens };
}

interface PrefillSum {
  readonly priority: number;
  readonly tenant?: string;
  prompts: number;
  tokens: number;
  keyRows: number;
}

export interface ReportedRequest {
  readonly id: RequestId;
  /**
   * Output tokens sent to the client from here; 0 before the start, and on an instance that only computes the prompt.
   */
  readonly outputs: number;
  /** The instance has only reserved memory for the prompt, and has not received it. */
  readonly receiving: boolean;
}

/**
 * prefill: computes prompts for decode instances. decode: decodes prompts of prefill instances. mixed: does both for
 * its own requests. store: computes nothing, and keeps KV blocks that others have computed.
 */
export type InstanceRole = 'prefill' | 'decode' | 'mixed' | 'store';
