// The outside world as the machines and the gateway see it: requests in, events out.
import type { GuestCounts, MessengerCounts, RemoteCounts } from '../../util/counts.ts';
import type { PinId, RequestId } from './ids.ts';
import type { InstanceRole } from './instance-report.ts';
import type { PinOrder as Order, PinState } from './pin-order.ts';
import type { FailureCode, RefusalCause } from './refusal-cause.ts';
import type { RequestTrace } from './request-trace.ts';

export type { InstanceRole, PinId, PinState, RequestTrace as RequestAccount };

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
  /** Prompt plus this never exceeds the context. 0: only score the prompt. */
  readonly maxTokens: number;
  readonly sampling: SamplingParams;
  /** Token ids that end the output (end-of-sequence ids unless ignored, and the client's own). The stop token is reported, and is the last. */
  readonly stopTokenIds: readonly number[];
  /** Larger runs first; 0 is the default. */
  readonly priority: number;
  /** A batch job: it runs in what others leave, below every priority. */
  readonly batch?: boolean;
  /** For whoever collects traces: as its gateway has it. */
  readonly trace?: string;
  /** What it may wait, by the name of its class; undefined: what those may wait who name none. */
  readonly sloClass?: string;
  /** What it may wait for each token, as its conductor has worked out; undefined: as long as it takes. */
  readonly tbtUsMax?: number;
  /** Requests of different salts share no prefix. */
  readonly salt: string;
  /** Whose it is: tenants of one priority share by tokens. */
  readonly tenant?: string;
  /** It was under way before, on an instance that was lost: what its client has heard is not said again. */
  readonly resumed?: ResumedFrom | undefined;
}

/** Tokens of output that a client has, and how many prompt tokens it has log-probabilities of. */
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

/** Keep the full blocks of a prompt for a time. */
export type PinOrder = Order<GenerationRequest>;
/** Hears what becomes of a pin, and which instance keeps it. */
export type PinListener = (state: PinState, instance: number | undefined) => void;

/** What else those who serve can be asked. */
export interface ClusterPort {
  /** `told` hears `pinned` or `refused`, later `unpinned`; of an order that comes again the time is renewed. */
  pin(order: PinOrder, told: PinListener): void;
  /** Unknown: nothing to do. */
  unpin(id: PinId): void;
  /** Hears what came of each request when it has ended, however it did. */
  onEnded(listener: (account: RequestTrace) => void): void;
  /** What is known of a request that is under way or has ended lately. */
  account(id: RequestId): RequestTrace | undefined;
  /** (instances) */
  roles(): readonly InstanceRole[];
  /** New requests go to it in that role, what it has ends there. Undefined: it is so; else why it cannot be. */
  switchRole(instance: number, role: InstanceRole): string | undefined;
}

export type GenerationEvent =
  /** The queue took the request: the first event unless it is refused. */
  | { readonly kind: 'accepted' }
  /** Prefill began; `cachedTokens` of the prompt came from the prefix cache. `ahead`: some of them are still on their way. */
  | { readonly kind: 'started'; readonly cachedTokens: number; readonly ahead?: true }
  /** Log-probabilities of prompt tokens 1.. in order (the first token has none); may come in several pieces before the first output token. */
  | { readonly kind: 'prompt-logprobs'; readonly logprobs: TokenLogprobs }
  /** `at`: how many tokens came before these, where that may be in doubt. */
  | {
      readonly kind: 'tokens';
      readonly tokens: Int32Array;
      readonly logprobs: TokenLogprobs | undefined;
      readonly at?: number;
    }
  | { readonly kind: 'finished'; readonly reason: 'stop' | 'length' }
  | {
      readonly kind: 'failed';
      readonly code: FailureCode;
      readonly message: string;
      readonly retryAfterMs: number | undefined;
      /** Of requests that were refused. */
      readonly cause?: RefusalCause;
    };

/** To one other instance: bytes so far, and those of them that are not known to have arrived. */
export interface LinkSnapshot {
  readonly to: number;
  /** Where `to` is no instance's place: of the other, which is in another process. */
  readonly name?: string;
  readonly bytes: number;
  readonly backlogBytes: number;
  /** The way that they take: copied inside a process, over memory that two processes share, or by tcp. Undefined until the other side has been reached. */
  readonly transport?: 'thread' | 'shared' | 'tcp';
}

/** Counters and gauges of an instance, for /metrics, /ready and dashboards. */
export interface InstanceSnapshot {
  /** Of an instance that joined as a process. */
  readonly name?: string;
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
  /** What it has learned of the time of its steps (`StepCost`). */
  readonly stepCost?: readonly number[];
  /** Pages that sequences held, over time. */
  readonly usedPageSeconds: number;
  /** Of the prefix cache below device memory, where there are any. */
  readonly tiers?: TiersSnapshot | undefined;
  /** Of an instance that keeps what others compute. */
  readonly store?: StoreSnapshot | undefined;
  /** Pages set aside for prompts of other instances, and those of them that wait for one. */
  readonly landing?: { readonly total: number; readonly free: number };
  /** Of memory that instances lend to one another, where they do. */
  readonly lending?: LendingSnapshot | undefined;
  /** (places in a group): chunks of prompts that it has run as the first of a group, the second... where groups compute prompts. */
  readonly stageChunks?: readonly number[];
  /** To the members of groups that ran the layers after its own: bytes of rows. */
  readonly rowLinks?: readonly LinkSnapshot[];
  /** To those that prompts have gone to: bytes of KV pages. */
  readonly links?: readonly LinkSnapshot[];
  /** What has been copied to other instances, where prompts are handed over: pages, their bytes, those of them that left while a step ran. */
  readonly sent?: MessengerCounts;
}

/** Between an instance and another that lends. */
export interface LendingLink {
  readonly peer: number;
  /** Blocks borrowed there, bytes of blocks that were moved there or came from there for this one, and loans refused there. */
  readonly borrowedBlocks: number;
  readonly movedBytes: number;
  readonly refusals: number;
  /** The way that blocks take, as for other pages. */
  readonly transport?: LinkSnapshot['transport'];
  /** Queries of the other's that were answered here, those that were not, and their bytes: rows in, partials out. */
  readonly queries: number;
  readonly refusedQueries: number;
  readonly queryBytes: number;
  readonly partialBytes: number;
}

export interface LendingSnapshot {
  /** Across processes: its process is gManager. */
  readonly isManager?: boolean;
  /** Blocks lent to others, held from others, and those of these with contents of sequences. */
  readonly lentBlocks: number;
  readonly borrowedBlocks: number;
  readonly remoteBlocks: number;
  /** Of those, what no sequence has, but is kept as cache. */
  readonly keptBlocks: number;
  /** Bytes of blocks that its messenger copied, and those of them that left while a step ran. */
  readonly copiedBytes: number;
  readonly earlyBytes: number;
  /** Blocks that went out, that were called back, that came home by settlements, and that were lost with whoever had them. */
  readonly movedBlocks: number;
  /** Of those, to host memory, its own or a creditor's; and blocks that sequences have in its own now. */
  readonly hostBlocks: number;
  readonly ownHostBlocks: number;
  readonly vacatedBlocks: number;
  readonly homeBlocks: number;
  readonly lostBlocks: number;
  /** How often sequences waited for memory on its way, and how long. */
  readonly stalls: number;
  readonly stallUs: number;
  /** Its number among those that lend, which links name. */
  readonly place: number;
  readonly links: readonly LendingLink[];
  /** Attention computed for others over blocks of this instance: query rows in, partials out. */
  readonly guests: GuestCounts;
  /** Asked of others: query rows out, partials in, and how long steps waited after their own part. */
  readonly remote: RemoteCounts;
}

export interface TierSnapshot {
  readonly blocks: number;
  /** What it may hold now. */
  readonly capacity: number;
}

/** Prefixes that came to a store and left it. */
export interface StoreSnapshot {
  readonly takenBlocks: number;
  readonly sentBlocks: number;
  /** What was offered and not taken, for want of room or because too much else was. */
  readonly declinedOffers: number;
  /** Of live ones: of the blocks that came. */
  readonly takenBytes?: number | undefined;
}

export interface TiersSnapshot {
  readonly host: TierSnapshot;
  readonly ssd: TierSnapshot;
  /** Blocks loaded to the device, by where they had been. */
  readonly reads: Readonly<Record<'host' | 'ssd' | 'instance', number>>;
  readonly lostBlocks: number;
  /** Of live instances: bytes between the pool and host memory, and of SSD, and blocks of SSD that were not whole. */
  readonly moved?:
    | {
        readonly copiedBytes: number;
        readonly ssdReadBytes: number;
        readonly ssdReadSeconds: number;
        readonly ssdWrittenBytes: number;
        readonly badBlocks: number;
      }
    | undefined;
}

/** Can new requests be served? `message` says in a few words why not. */
export type Readiness =
  | { readonly kind: 'ready' }
  /** `starting`: instances load; `incomplete`: those that are there cannot serve; `unreachable`: they cannot be spoken to. */
  | { readonly kind: 'starting' | 'incomplete' | 'unreachable' | 'draining'; readonly message: string };

/** What serves requests: instances behind a conductor. */
export interface InferencePort {
  /** `sink` hears `accepted` or `failed` at once, before submit returns, then the rest in order; `finished` or `failed` is last and comes exactly once unless the request is cancelled. */
  submit(request: GenerationRequest, sink: (event: GenerationEvent) => void): void;
  /** The refusal that a request would meet now, were `ahead` others submitted before it; undefined while there is room. Cheap. */
  overload(ahead: number): Extract<GenerationEvent, { kind: 'failed' }> | undefined;
  /** Frees everything the request holds; its sink hears nothing more. Unknown ids are ignored. */
  cancel(id: RequestId): void;
  readiness(): Readiness;
  /** Of all instances together. */
  snapshot(): InstanceSnapshot;
  instances(): readonly InstanceSnapshot[];
  /** Refuses new requests (SHUTTING_DOWN) and resolves when those accepted have ended. */
  drain(): Promise<void>;
}
