// KV events of an external engine, as vLLM and SGLang publish them: blocks by the engine's own hashes.

/** Names a block within its engine. Equal hashes of one engine stand for equal blocks behind equal prefixes. */
export type EngineBlockHash = number | bigint | string;

/** Where an engine holds a block. `remote`: a store that several engines share. */
export type EngineMedium = 'device' | 'host' | 'disk' | 'remote';

export type EngineKvEvent =
  /**
   * Consecutive blocks are stored, or used again. A block that was stored before may be repeated, on the same medium or
   * on another one.
   */
  | {
      readonly kind: 'stored';
      readonly hashes: readonly EngineBlockHash[];
      /** The block before the first one; undefined: the first one begins a sequence. */
      readonly parent: EngineBlockHash | undefined;
      /** (hashes, blockTokens) */
      readonly tokens: Int32Array;
      readonly blockTokens: number;
      readonly medium: EngineMedium;
      /**
       * (hashes): what a block's contents depend on besides its tokens and those before it, for example a cache salt;
       * empty: nothing. Undefined: nothing for all blocks.
       */
      readonly extraKeys?: readonly string[] | undefined;
    }
  | { readonly kind: 'removed'; readonly hashes: readonly EngineBlockHash[]; readonly medium: EngineMedium }
  /** The engine has reset its prefix cache: no block is left on any medium. */
  | { readonly kind: 'cleared' };

/** The events of one step of an engine. */
export interface EngineKvBatch {
  /** Seconds by the clock of the engine. */
  readonly atS: number;
  /** The data-parallel rank of the cache; undefined: the engine has one cache. */
  readonly rank: number | undefined;
  readonly events: readonly EngineKvEvent[];
}
