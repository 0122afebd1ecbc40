// A request that one external engine prefills and another one decodes, by either order of the two calls.

/**
 * `sequential`: the prefill engine answers with parameters that the decode engine pulls the blocks by (vLLM with Nixl).
 * `concurrent`: both receive the request at once, with the address of one bootstrap server (SGLang).
 * `queried`: the same, once the bootstrap server has named the prefill engine (vLLM with Mooncake).
 */
export type HandOffOrder = 'sequential' | 'concurrent' | 'queried';

export type HandOffEvent<Params> =
  /** The bootstrap server has named the prefill engine; undefined: it has failed to. */
  | { readonly kind: 'queried'; readonly params: Params | undefined }
  /** The prefill engine has answered. */
  | { readonly kind: 'prefilled'; readonly params: Params | undefined }
  /** The prefill engine refuses, or its answer broke. */
  | { readonly kind: 'prefillFailed'; readonly why: string }
  /** The first tokens have arrived from the decode engine. */
  | { readonly kind: 'decoding' }
  /** The stream of the decode engine has ended: `why` unless the output is complete. */
  | { readonly kind: 'decodeEnded'; readonly why: string | undefined }
  | { readonly kind: 'cancelled' };

export type HandOffEffect<Params> =
  | { readonly kind: 'query' }
  | { readonly kind: 'prefill' }
  /** `params`: of the prefill engine, or of its bootstrap server; `alone`: the decode engine computes the prompt itself. */
  | { readonly kind: 'decode'; readonly params: Params | undefined; readonly alone: boolean }
  /** For the conductor: the prefill engine has nothing left to do. */
  | { readonly kind: 'reportPrefilled' }
  /** For the conductor: the attempt is lost, and another one may succeed. */
  | { readonly kind: 'release'; readonly why: string; readonly by: 'prefill' | 'decode' }
  | { readonly kind: 'cancelPrefill' }
  | { readonly kind: 'cancelDecode' };

/**
 * Late and repeated events change nothing. Before the decode engine is called, a query or a prefill that fails while the
 * prefill engine is up falls back to the decode engine alone. The failure of an engine, and of one of two concurrent
 * calls, ends the attempt, which the conductor repeats.
 */
export class HandOff<Params> {
  readonly #order: HandOffOrder;
  #prefill: 'none' | 'querying' | 'running' | 'ended' = 'none';
  #decode: 'none' | 'waiting' | 'streaming' | 'ended' = 'none';

  constructor(order: HandOffOrder) {
    this.#order = order;
  }

  get hasEnded(): boolean {
    return this.#decode === 'ended';
  }

  /** The prefill engine has not answered yet. */
  get awaitsPrefill(): boolean {
    return this.#prefill === 'querying' || this.#prefill === 'running';
  }

  start(): readonly HandOffEffect<Params>[] {
    if (this.#prefill !== 'none') return [];
    this.#prefill = this.#order === 'queried' ? 'querying' : 'running';
    if (this.#order === 'queried') return [{ kind: 'query' }];
    return this.#order === 'sequential'
      ? [{ kind: 'prefill' }]
      : [{ kind: 'prefill' }, this.#startDecode(undefined, false)];
  }

  step(event: HandOffEvent<Params>): readonly HandOffEffect<Params>[] {
    if (this.hasEnded) return [];
    switch (event.kind) {
      case 'queried':
        return this.#queried(event.params);
      case 'prefilled':
        return this.#prefilled(event.params);
      case 'prefillFailed':
        return this.#prefillFailed(event.why);
      case 'decoding':
        if (this.#decode !== 'waiting') return [];
        this.#decode = 'streaming';
        return this.#endPrefill();
      case 'decodeEnded': {
        if (this.#decode === 'none') return [];
        const cancels = this.#cancels();
        this.#decode = 'ended';
        const why = event.why;
        const running = cancels.filter(({ kind }) => kind === 'cancelPrefill');
        return why === undefined ? running : [...running, { kind: 'release', why, by: 'decode' }];
      }
      default: {
        const cancels = this.#cancels();
        this.#decode = 'ended';
        return cancels;
      }
    }
  }

  #queried(params: Params | undefined): readonly HandOffEffect<Params>[] {
    if (this.#prefill !== 'querying') return [];
    this.#prefill = 'running';
    if (params === undefined) return [...this.#endPrefill(), this.#startDecode(undefined, true)];
    return [{ kind: 'prefill' }, this.#startDecode(params, false)];
  }

  #prefilled(params: Params | undefined): readonly HandOffEffect<Params>[] {
    const reported = this.#endPrefill();
    if (this.#order !== 'sequential' || this.#decode !== 'none') return reported;
    return [...reported, this.#startDecode(params, params === undefined)];
  }

  #prefillFailed(why: string): readonly HandOffEffect<Params>[] {
    if (this.#prefill !== 'running') return [];
    const reported = this.#endPrefill();
    if (this.#order === 'sequential') return [...reported, this.#startDecode(undefined, true)];
    // With tokens from the decode engine the blocks have arrived; without, it waits for blocks that do not come.
    if (this.#decode === 'streaming') return reported;
    this.#decode = 'ended';
    return [...reported, { kind: 'cancelDecode' }, { kind: 'release', why, by: 'prefill' }];
  }

  #endPrefill(): readonly HandOffEffect<Params>[] {
    if (this.#prefill !== 'running') return [];
    this.#prefill = 'ended';
    return [{ kind: 'reportPrefilled' }];
  }

  #startDecode(params: Params | undefined, alone: boolean): HandOffEffect<Params> {
    this.#decode = 'waiting';
    return { kind: 'decode', params, alone };
  }

  #cancels(): readonly HandOffEffect<Params>[] {
    const prefill: readonly HandOffEffect<Params>[] = this.#prefill === 'running' ? [{ kind: 'cancelPrefill' }] : [];
    const runs = this.#decode === 'waiting' || this.#decode === 'streaming';
    this.#prefill = 'ended';
    return runs ? [...prefill, { kind: 'cancelDecode' }] : prefill;
  }
}
