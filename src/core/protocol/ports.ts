// Ports between the gateway and the cluster: requests in, events and snapshots out.

import type { MessengerCounts, RemoteAttentionCounts, RemoteCounts } from '../../util/counts.ts';
import type { Pooling } from '../../util/model-config.ts';
import type { Grammar } from './grammar.ts';
import type { PinId, RequestId } from './ids.ts';
import type { EngineIdentity, InstanceRole } from './instance-report.ts';
import type { PinOrder as Order, PinState } from './pin-order.ts';
import type { FailureCode, RefusalCause } from './refusal-cause.ts';
import type { RequestTrace } from './request-trace.ts';

export type { InstanceRole, PinId, PinState, Pooling };

export interface SamplingParams {
  /** 0 is greedy. */
  readonly temperature: number;
  readonly topP: number;
  /** 0 is off. */
  readonly topK: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly frequencyPenalty: number;
  readonly presencePenalty: number;
  readonly logitBias: readonly (readonly [tokenId: number, bias: number])[];
  /** Two unsigned 32-bit halves; drawn by the gateway where the client gave none. */
  readonly seed: readonly [number, number];
  /** Alternatives to report beside each token, 0..20; undefined: no log-probabilities at all. */
  readonly topLogprobs: number | undefined;
  /** Log-probabilities of the prompt's own tokens too (completions with echo). */
  readonly promptLogprobs: boolean;
}

export interface GenerationRequest {
  readonly id: RequestId;
  /** At least one token id. */
  readonly prompt: Int32Array;
  /** Prompt plus this never exceeds the context. 0: only score or embed the prompt. */
  readonly maxTokens: number;
  readonly sampling: SamplingParams;
  /** The event `embedding` reports the pooled hidden states of the prompt; undefined: none. */
  readonly pooling?: Pooling;
  /** Prompt tokens from here on belong to the second text of a pair, and have token type 1. */
  readonly pairFrom?: number;
  /**
   * Token ids that end the output (end-of-sequence ids unless ignored, and the client's own). The stop token is
   * reported as the last token.
   */
  readonly stopTokenIds: readonly number[];
  /** The gateway has no tokenizer: the engine decodes, and its own end-of-sequence tokens end the output too. */
  readonly engineText?: { readonly ignoresEos: boolean; readonly keepsSpecial: boolean };
  /** No stop token is sampled before this number of output tokens; undefined: 0. */
  readonly minTokens?: number;
  /** Undefined: any token may follow. */
  readonly grammar?: Grammar;
  /** Larger runs first; 0 is the default. */
  readonly priority: number;
  /** A batch job: it uses idle capacity, below every priority. */
  readonly batch?: boolean;
  /** Trace context of the gateway. */
  readonly trace?: string;
  /** Name of the SLO class; undefined: the default class. */
  readonly sloClass?: string;
  /** TBT objective, derived by the conductor; undefined: none. */
  readonly tbtUsMax?: number;
  /** The instance that decodes it judges it once more when its prompt arrives. */
  readonly rechecks?: boolean;
  /** Tokens that each KV head keeps in sparse layers; undefined: those of the server's default. */
  readonly kvBudget?: number | 'full';
  /** Requests of different salts share no prefix. */
  readonly salt: string;
  /** Tenants of one priority share by tokens. */
  readonly tenant?: string;
  /** The client has output of an earlier attempt, which is not sent again. */
  readonly resumed?: ResumedFrom | undefined;
}

/** Tokens of output that the client has, and the number of prompt tokens with log-probabilities that it has. */
export interface ResumedFrom {
  readonly tokens: Int32Array;
  readonly scored: number;
}

/** Log-probabilities of `tokens.length` tokens, `width` alternatives each, best first. */
export interface TokenLogprobs {
  readonly logprobs: Float32Array;
  readonly width: number;
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
}

/** Pin the full blocks of a prompt for a time. */
export type PinOrder = Order<GenerationRequest>;
/** Receives the states of a pin, and the instance that keeps it. */
export type PinListener = (state: PinState, instance: number | undefined) => void;

/** Times of `traces` and `nowUs` are of one clock. */
export interface RecentTraces {
  readonly nowUs: number;
  readonly traces: readonly RequestTrace[];
}

/** A run of blocks that several prompts contain behind the blocks of `parent`. */
export interface SharedPrefix {
  readonly id: number;
  readonly parent: number | undefined;
  /** The start of the last block's hash. */
  readonly hash: string;
  /** Blocks before the run, and blocks of the run. */
  readonly depth: number;
  readonly blocks: number;
  /** Prompts with the whole run, and blocks of it that prefix caches had, summed over prompts. */
  readonly prompts: number;
  readonly hitBlocks: number;
  readonly lastUsedUs: number;
  /** Instances with the last block. */
  readonly holders: number;
}

/** Traces of requests, and the roles of the instances. */
export interface ClusterView {
  /** The listener receives the trace of each request when it has ended. */
  onEnded(listener: (trace: RequestTrace) => void): void;
  /** The trace of a request that is running or has ended recently. */
  requestTrace(id: RequestId): RequestTrace | undefined;
  /** The traces with an event since then, at most `most`, the latest submissions first. */
  recentTraces(sinceUs: number, most: number): RecentTraces;
  /** The prefixes that prompts share, the most used first; a parent precedes its children. */
  sharedPrefixes(most: number): readonly SharedPrefix[];
  /** (instances) */
  roles(): readonly InstanceRole[];
  /**
   * The instance takes new requests in that role, and finishes those that it has. Returns the reason if that is
   * impossible.
   */
  switchRole(instance: number, role: InstanceRole): string | undefined;
}

/** Other requests to the cluster. */
export interface ClusterPort extends ClusterView {
  /** `listener` receives `pinned` or `refused`, later `unpinned`. A repeated order renews the time. */
  pin(order: PinOrder, listener: PinListener): void;
  /** Unknown: ignored. */
  unpin(id: PinId): void;
}

export type GenerationEvent =
  /** The request is accepted: the first event, unless it is refused. */
  | { readonly kind: 'accepted' }
  /**
   * Prefill began; `cachedTokens` of the prompt came from the prefix cache. `ahead`: some of them are still in
   * transfer. `keptTokens`: prompt tokens that sparse layers keep, averaged over these layers; undefined: all.
   * `alone`: the pipeline group has not formed, and the first member computes the whole prompt.
   * `prefillUs`: the prefill has ended and took this time, 0 where it shared the steps of another one; an instance that
   * cannot announce its starts reports them so.
   */
  | {
      readonly kind: 'started';
      readonly cachedTokens: number;
      readonly ahead?: true;
      readonly alone?: true;
      readonly keptTokens?: number;
      readonly prefillUs?: number;
    }
  /**
   * Log-probabilities of prompt tokens 1.. in order (the first token has none); may come in several pieces before the
   * first output token.
   */
  | { readonly kind: 'prompt-logprobs'; readonly logprobs: TokenLogprobs }
  /** The pooled hidden states of the prompt, not normalised; the last event before `finished`. */
  | { readonly kind: 'embedding'; readonly values: Float32Array }
  /**
   * `at`: the number of tokens before these, if the receiver cannot count them. `text`: what the engine has decoded, of a
   * request with `engineText`.
   */
  | {
      readonly kind: 'tokens';
      readonly tokens: Int32Array;
      readonly text?: string;
      readonly logprobs: TokenLogprobs | undefined;
      readonly at?: number;
    }
  | { readonly kind: 'finished'; readonly reason: 'stop' | 'length' }
  | {
      readonly kind: 'failed';
      readonly code: FailureCode;
      readonly message: string;
      readonly retryAfterMs: number | undefined;
      /** Of refused requests. */
      readonly cause?: RefusalCause;
    };

/** The link to one other instance: bytes sent, and bytes not yet acknowledged. */
export interface LinkSnapshot {
  readonly to: number;
  /** Name of the other instance, where it is in another process and `to` is no index. */
  readonly name?: string;
  readonly bytes: number;
  readonly backlogBytes: number;
  /** Measured rate of copies to it; undefined without a recent one. */
  readonly bytesPerSecond?: number;
  /** Copies inside a process, memory shared by two processes, or TCP. Undefined until the other side is reached. */
  readonly transport?: 'thread' | 'shared' | 'tcp' | 'rdma';
}

/** Upper bounds of the buckets of block ages, those of vLLM. */
export const blockAgeBoundsS = [
  ...[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800],
] as const;

/** Observations by bucket; the last bucket has those above every bound. */
export interface HistogramSnapshot {
  readonly counts: readonly number[];
  readonly sum: number;
}

/** Ages in seconds of blocks of the prefix cache in device memory. */
export interface BlockAges {
  /** From the entry of a block to its eviction. */
  readonly lifetime: HistogramSnapshot;
  /** From a use of a block to its next use by another request. */
  readonly reuseGap: HistogramSnapshot;
}

/** Upper bounds of the buckets of `pagesByAge`; a last bucket has the older pages. */
export const pageAgeBoundsS = [1, 10, 60, 600] as const;

/** Pages of device memory by holder and by age; updated once a second. */
export interface MemorySnapshot {
  /** Pages of pinned prefixes, and of blocks lent to other instances. */
  readonly pinned: number;
  readonly lent: number;
  /** Requests with the most pages; a shared page counts for each. */
  readonly owners: readonly (readonly [id: RequestId, pages: number])[];
  /** Cached pages that no request uses, by the time since their last use. */
  readonly pagesByAge: readonly number[];
}

/** Counters and gauges of an instance, for /metrics, /ready and dashboards. */
export interface InstanceSnapshot {
  /** Name of an instance that joined as a process. */
  readonly name?: string;
  /** Lost for so long that it is no longer shown. */
  readonly departed?: true;
  readonly ready: boolean;
  readonly waiting: number;
  readonly running: number;
  readonly pages: { readonly total: number; readonly used: number; readonly cached: number; readonly free: number };
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly computedPromptTokens: number;
  readonly generatedTokens: number;
  readonly preemptions: number;
  readonly steps: number;
  readonly stepMsTotal: number;
  readonly evictedBlocks: number;
  readonly blockAges?: BlockAges;
  readonly memory?: MemorySnapshot;
  /** Blocks that the pages hold, and the tokens of one. */
  readonly blocks?: { readonly total: number; readonly tokens: number };
  /** Of an external engine. */
  readonly engine?: EngineIdentity;
  /** Learned coefficients of the step time (`StepCost`), without attention for debtors. */
  readonly stepCost?: readonly number[];
  /** Share of steps that attention for debtors takes, in thousandths; undefined: 0. */
  readonly servedAttentionPermille?: number;
  /** Pages held by sequences, integrated over time. */
  readonly usedPageSeconds: number;
  /** Tiers of the prefix cache below device memory. */
  readonly tiers?: TiersSnapshot | undefined;
  /** Of a store. */
  readonly store?: StoreSnapshot | undefined;
  /** Undefined: no prefix was copied to this instance. */
  readonly prefixCopies?: PrefixCopies | undefined;
  /** Pages of the receive buffers, and the free ones among them. */
  readonly receivePages?: { readonly total: number; readonly free: number };
  /** Attention workers of the instance, in the order of their KV heads. */
  readonly attentionWorkers?: readonly AttentionWorkerSnapshot[] | undefined;
  /** Where requests may have a KV budget. */
  readonly sparse?: SparseSnapshot | undefined;
  /** Memory that instances lend. */
  readonly lending?: LendingSnapshot | undefined;
  /** (positions in a pipeline group): chunks that the instance has computed at each position. */
  readonly pipelineChunks?: readonly number[];
  /** Links to the next members of pipelines: bytes of activations. */
  readonly activationLinks?: readonly LinkSnapshot[];
  /** Links to instances that prompts were handed off to: bytes of KV pages. */
  readonly links?: readonly LinkSnapshot[];
  /** Pages copied to other instances by hand-offs, their bytes, and the bytes copied while a step ran. */
  readonly sent?: MessengerCounts;
}

/** Kept tokens of requests with a KV budget. Tokens count once for each sparse layer. */
export interface SparseSnapshot {
  /** Running sequences that read some keys only in sparse layers, and tokens in their slots. */
  readonly sequences: number;
  readonly slotTokens: number;
  /** Pages in use for slots, their states, and bounds of pages, those of prompts in prefill included. */
  readonly slotPages: number;
  /** Prompts selected, their tokens, and the tokens kept of them. */
  readonly selections: number;
  readonly promptTokens: number;
  readonly keptTokens: number;
}

/** An attention worker of an instance, and the instance's traffic with it. */
export interface AttentionWorkerSnapshot {
  readonly ready: boolean;
  /** Times that its pages were lost. */
  readonly losses: number;
  /** Where sequences lie whole at one worker: the running ones there, and their tokens with keys and values. */
  readonly sequences?: number;
  readonly heldTokens?: number;
  /** Attention of one layer in one step. */
  readonly calls?: number;
  /** Query rows, keys and values sent; results received. */
  readonly bytesOut?: number;
  readonly bytesIn?: number;
  /** Time that steps waited for its results after their own part. */
  readonly waitSeconds?: number;
  /** Its compute time before the keys and values of a step arrived, and after. */
  readonly earlySeconds?: number;
  readonly lateSeconds?: number;
  /** Pages of prompts that it pulled from prefill instances, its shard of each, and their bytes. */
  readonly pulledPages?: number;
  readonly pulledBytes?: number;
}

/** Figures of lending between two instances. */
export interface LendingLink {
  readonly peer: number;
  /** Blocks borrowed there, bytes of blocks moved there or fetched from there, and loans refused there. */
  readonly borrowedBlocks: number;
  readonly movedBytes: number;
  readonly refusals: number;
  /** Its measured round trip and rate; undefined without a recent measurement. */
  readonly roundTripUs?: number;
  readonly bytesPerSecond?: number;
  /** Distance to it by these, as the gManager derives it. */
  readonly distance?: number;
  /** The transport of blocks. */
  readonly transport?: LinkSnapshot['transport'];
  /** Queries of the other instance that were answered or refused here, and their bytes: rows in, partials out. */
  readonly queries: number;
  readonly refusedQueries: number;
  readonly queryBytes: number;
  readonly partialBytes: number;
}

export interface LendingSnapshot {
  /** Across processes: its process runs the gManager. */
  readonly isManager?: boolean;
  /** Blocks lent, blocks borrowed, and borrowed blocks that hold contents of sequences. */
  readonly lentBlocks: number;
  readonly borrowedBlocks: number;
  readonly remoteBlocks: number;
  /** Of those, blocks of the remote prefix cache. */
  readonly remoteCachedBlocks: number;
  /** Bytes of blocks that the messenger copied, and those copied while a step ran. */
  readonly copiedBytes: number;
  readonly overlappedBytes: number;
  /** Blocks moved to creditors. */
  readonly movedBlocks: number;
  /** Of those, blocks that went to host memory; and blocks of sequences in the instance's own host memory. */
  readonly hostBlocks: number;
  readonly ownHostBlocks: number;
  /** Blocks recalled, returned by settlements, and lost with failed creditors. */
  readonly vacatedBlocks: number;
  /** Settlements in which it returned blocks; undefined from earlier releases. */
  readonly settlements?: number;
  readonly settledBlocks: number;
  readonly lostBlocks: number;
  /** Stalls of sequences that waited for memory, and their time. */
  readonly stalls: number;
  readonly stallUs: number;
  /** The number of this instance among the lenders, by which `links` name it. */
  readonly lenderNumber: number;
  readonly links: readonly LendingLink[];
  /** Attention computed here for debtors: query rows in, partials out. */
  readonly servedAttention: RemoteAttentionCounts;
  /**
   * Attention computed by creditors: query rows out, partials in, and the time that steps waited for them after the
   * local part.
   */
  readonly remoteAttention: RemoteCounts;
}

export interface TierSnapshot {
  readonly blocks: number;
  /** Blocks that fit. */
  readonly capacity: number;
}

/** Blocks of prefixes that an instance, no store, has received from others. */
export interface PrefixCopies {
  /** For a request that placement sent to this instance. */
  readonly fetchedBlocks: number;
  /** Of hot prefixes, before a prompt fetched them. */
  readonly proactiveBlocks: number;
}

/** Prefixes that a store has fetched and sent. */
export interface StoreSnapshot {
  readonly takenBlocks: number;
  readonly sentBlocks: number;
  /** Offers declined for lack of free capacity or time. */
  readonly declinedOffers: number;
  /** Of live instances: bytes of the fetched blocks. */
  readonly takenBytes?: number | undefined;
}

export interface TiersSnapshot {
  readonly host: TierSnapshot;
  readonly ssd: TierSnapshot;
  /** Blocks loaded to the device, by source. */
  readonly reads: Readonly<Record<'host' | 'ssd' | 'instance', number>>;
  readonly lostBlocks: number;
  /** Of live instances: bytes copied between the pool and host memory, bytes of SSD, and corrupt blocks of SSD. */
  readonly moved?:
    | {
        readonly copiedBytes: number;
        /** Of them, copied to host memory while the step that computed them ran. */
        readonly storedEarlyBytes?: number | undefined;
        readonly ssdReadBytes: number;
        readonly ssdReadSeconds: number;
        readonly ssdWrittenBytes: number;
        readonly badBlocks: number;
      }
    | undefined;
}

/** Whether new requests can be served; `message` is the reason why not. */
export type Readiness =
  | { readonly kind: 'ready' }
  /**
   * `starting`: instances load; `incomplete`: the instances present cannot serve; `unreachable`: there is no connection
   * to them.
   */
  | { readonly kind: 'starting' | 'incomplete' | 'unreachable' | 'draining'; readonly message: string };

/** State of all instances behind the gateway. */
export interface InstancesPort {
  /** The refusal of a request with `ahead` others submitted before it; undefined: it fits. Cheap. */
  overload(ahead: number): Extract<GenerationEvent, { kind: 'failed' }> | undefined;
  readiness(): Readiness;
  /** Of all instances together. */
  snapshot(): InstanceSnapshot;
  instances(): readonly InstanceSnapshot[];
  /** Refuses new requests (SHUTTING_DOWN), and resolves when all accepted ones have ended. */
  drain(): Promise<void>;
}

/** Instances behind a conductor, as the gateway uses them. */
export interface InferencePort extends InstancesPort {
  /**
   * `sink` receives `accepted` or `failed` before submit returns, then further events in order. The last one,
   * `finished` or `failed`, comes exactly once unless the request is cancelled.
   */
  submit(request: GenerationRequest, sink: (event: GenerationEvent) => void): void;
  /** Frees everything that the request holds; its sink receives no further event. Unknown ids are ignored. */
  cancel(id: RequestId): void;
}

/** A client's request about a file, batch or context that another gateway has. */
export interface ForwardedRequest {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** @see isForwardedPath */
  readonly path: string;
  /** Whose files, batches and contexts the request may reach: the owner of stored data, not its key. */
  readonly owner: string;
  /** In the log of both gateways. */
  readonly requestId: string;
  /** At most `forwardedBodyBytesMax`; empty: none. */
  readonly body: Uint8Array;
}

/** Bytes of the body of a forwarded request at most. */
export const forwardedBodyBytesMax = 2 ** 20;
const forwardedPathMax = 512;

/** The path is that of a route about files, batches or contexts, without a query. */
export function isForwardedPath(path: string): boolean {
  return path.length <= forwardedPathMax && /^\/v1\/(files|batches|contexts)(\/[\w-]+){0,2}$/.test(path);
}

export interface ForwardedResponse {
  readonly status: number;
  readonly headers: readonly (readonly [name: string, value: string])[];
  /** Throws when the gateway is lost or does not continue. */
  readonly body: AsyncIterable<Uint8Array>;
}

/** An AbortSignal. */
export interface Cancelled {
  readonly aborted: boolean;
  addEventListener(kind: 'abort', listener: () => void): void;
}

/** What a key has used at one gateway, counted from some time on. */
export interface KeyUsage {
  /** Stable for a key, and the same at each gateway. */
  readonly owner: string;
  /** Either may fall again when a charge is returned. */
  readonly requests: number;
  readonly tokens: number;
}

/** What a key has open at one gateway now. */
export interface KeyOpen {
  /** As of KeyUsage. */
  readonly owner: string;
  readonly open: {
    /** Requests that generate. */
    readonly requests: number;
    /** Those of them without a first token. */
    readonly queued: number;
    readonly connections: number;
  };
}

/** Of one gateway. */
export interface SharedUsage {
  /** Keys that are not idle. */
  readonly charged: readonly KeyUsage[];
  /** Keys that have something open. */
  readonly open: readonly KeyOpen[];
}

/** The other gateways of a cluster, each of which has files, batches and contexts of its own. */
export interface GatewayPeers {
  /** Names this gateway in ids: 8 hexadecimal digits. With a data folder it survives a restart. */
  readonly key: string;
  /** Of the gateways that can be reached. */
  keys(): readonly string[];
  /** Resolves with the reason, which names the gateway, if it cannot be reached or does not respond in time. */
  send(key: string, request: ForwardedRequest): Promise<ForwardedResponse | string>;
  /**
   * Requests of other gateways are answered by `answer` from now on. `cancelled` is aborted, perhaps after the answer,
   * when the other gateway has not had it in time: its client has an error, and may repeat the request.
   */
  onRequest(answer: (request: ForwardedRequest, cancelled: Cancelled) => Promise<ForwardedResponse>): void;
  /**
   * Every gateway receives `own()` twice a second from now on, and what the others send goes to `onOther`. A gateway that is lost has nothing open.
   * @param onOther `from` is one object for each connection to a gateway
   */
  shareUsage(own: () => SharedUsage, onOther: (from: object, usage: SharedUsage) => void): void;
}
