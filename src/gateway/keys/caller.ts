// The caller of a request: the identity behind an API key.

/** What a key may use at most; undefined: no limit of its own. */
export interface CallerLimits {
  readonly requestsPerMinute?: number | undefined;
  /** Prompt and output tokens. */
  readonly tokensPerMinute?: number | undefined;
  /** HTTP requests that generate at once. */
  readonly concurrentRequests?: number | undefined;
  /** HTTP requests without a first token. */
  readonly queuedRequests?: number | undefined;
  /** Connections at once; one belongs to the key of its latest request. */
  readonly connections?: number | undefined;
  /** Lines of unfinished batches. */
  readonly batchRequests?: number | undefined;
  readonly files?: number | undefined;
  readonly fileBytes?: number | undefined;
  /** Tokens in pinned contexts. */
  readonly pinnedTokens?: number | undefined;
  /** The highest priority that a request may have. */
  readonly priority?: number | undefined;
}

export interface Caller {
  /** The tenant in logs, metrics and fair shares; the owner of files, batches and contexts. Empty without keys. */
  readonly name: string;
  /** An admin also reads metrics, the cluster and the requests of others, and switches roles. */
  readonly role: 'user' | 'admin';
  /** Callers of one group share cached prefixes. Empty without keys. */
  readonly cacheGroup: string;
  readonly limits: CallerLimits;
}

/** Every caller of a server without keys. */
export const anyCaller: Caller = { name: '', role: 'admin', cacheGroup: '', limits: {} };
