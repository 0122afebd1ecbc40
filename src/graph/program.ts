// What a backend executes: a flat list of ops over planned buffers, as plain data.
import type { KvType } from '../util/kv-type.ts';
import type { Activation } from '../util/model-config.ts';
import type { LayerGroup } from '../util/step.ts';

/** Input form: how the input rows of a linear layer are rounded before the product. */
export type InputForm = 'f32' | 'bf16' | 'int8' | 'i16';

export type BufferId = number;
/** Index into the linear layers that the loader packed for this program. */
export type LinearId = number;
/** Index into the float32 vectors (norm gains, biases, rope tables) of this program. */
export type VectorId = number;

/**
 * A buffer holds one row for each token of the step, or for each row that needs logits.
 * `f32`: plain float32. `input`: rows rounded to `form`, in the (opaque) layout of the backend's linear kernels.
 * `query`: rows rounded to the KV type, heads outermost in a row (opaque).
 */
export type BufferSpec = {
  readonly rows: 'token' | 'logit';
  readonly columns: number;
} & ({ readonly kind: 'f32' } | { readonly kind: 'input'; readonly form: InputForm } | { readonly kind: 'query' });

/** The layer of the pages that an op accesses: `index` is its index in its layer group. */
export interface LayerRef {
  readonly group: number;
  readonly index: number;
}

export interface HeadShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

export type Op =
  /**
   * out[t] = table[token[t]] * scale, plus row position[t] + offset of the part of its token type of the table
   * `positions` (types, rows, columns of out).
   */
  | {
      readonly kind: 'embed';
      readonly table: LinearId;
      readonly scale: number;
      readonly positions: { readonly table: VectorId; readonly offset: number; readonly types: number } | undefined;
      readonly out: BufferId;
    }
  /**
   * With `residual`: residual += x in place, then out = norm(residual) * gain + bias. Without: out = norm(x) * gain +
   * bias. rms: norm(x) = x / sqrt(mean(x^2) + eps). layer: norm(x) = (x - mean) / sqrt(variance + eps).
   */
  | {
      readonly kind: 'norm';
      readonly style: 'rms' | 'layer';
      readonly x: BufferId;
      readonly residual: BufferId | undefined;
      readonly gain: VectorId;
      readonly bias: VectorId | undefined;
      readonly eps: number;
      readonly out: BufferId;
    }
  /** out (f32) = x (input) times the transposed weight, plus bias */
  | {
      readonly kind: 'linear';
      readonly weight: LinearId;
      readonly bias: VectorId | undefined;
      readonly x: BufferId;
      readonly out: BufferId;
    }
  /** x is (tokens, 2 n): gate | up. out = activation(gate) * up */
  | { readonly kind: 'glu'; readonly activation: Activation; readonly x: BufferId; readonly out: BufferId }
  /** out = activation(x) */
  | { readonly kind: 'activate'; readonly activation: Activation; readonly x: BufferId; readonly out: BufferId }
  /** residual += x in place (f32) */
  | { readonly kind: 'add'; readonly x: BufferId; readonly residual: BufferId }
  /** x = cap * tanh(x / cap) in place (f32) */
  | { readonly kind: 'softcap'; readonly cap: number; readonly x: BufferId }
  /** Rounds f32 rows to the kind of `out`. */
  | { readonly kind: 'convert'; readonly x: BufferId; readonly out: BufferId }
  /**
   * x is (tokens, (heads + 2 kvHeads) headDim): q | k | v in f32. Per head: optional rms norm of q and k, rotation of
   * the first `rotaryDim` dimensions (rotate-half) by the table row of the token's position, K and V written to
   * the token's slot in its page, q to `out` (query).
   * The rope table is (positions, rotaryDim): cos of rotaryDim/2 angles, then sin of them.
   */
  | ({
      readonly kind: 'qkv';
      readonly layer: LayerRef;
      readonly rope: VectorId | undefined;
      readonly rotaryDim: number;
      readonly qNorm: VectorId | undefined;
      readonly kNorm: VectorId | undefined;
      readonly eps: number;
      readonly x: BufferId;
      readonly out: BufferId;
    } & HeadShape)
  /**
   * WAIT_LAYER: waits until K and V of this layer, counted in the order of computation, have arrived in their pages.
   */
  | { readonly kind: 'waitLayer'; readonly layer: number }
  /**
   * LAYER_READY: K and V of the step's first `layers` layers are in their pages and may be sent during the rest of the
   * step.
   */
  | { readonly kind: 'layerReady'; readonly layers: number }
  /**
   * WAIT_ROWS: waits for the f32 activations of the previous layers and takes them from the step's `rowsIn`. Without
   * `rowsIn`, `out` keeps what was written to it.
   */
  | { readonly kind: 'waitRows'; readonly out: BufferId }
  /** ROWS_READY: f32 activations for the next layers are in the step's `rowsOut` and may be sent. */
  | { readonly kind: 'rowsReady'; readonly x: BufferId }
  /**
   * Causal attention of each row over its sequence's keys 0..position; `bidirectional`: over all of them, all of which the
   * step computes. `window`, the window of the layer's group,
   * limits it to the last `window` keys. Score of a key: s = scale * (q . k), then softcap * tanh(s / softcap) if
   * given, then plus slopes[head] * (key position - row position) (ALiBi) if given. `out` is `f32` or `input` and holds
   * the normalised result. With `stats`, `out` is f32 and unnormalised (sum of p v); the running max m of the scores
   * and the sum l go to two f32 buffers of `heads` columns.
   */
  | ({
      readonly kind: 'attention';
      readonly layer: LayerRef;
      readonly scale: number;
      readonly window: number | undefined;
      readonly softcap: number | undefined;
      readonly bidirectional?: boolean | undefined;
      /** (heads) */
      readonly slopes: VectorId | undefined;
      readonly q: BufferId;
      readonly stats: { readonly max: BufferId; readonly sum: BufferId } | undefined;
      readonly out: BufferId;
    } & HeadShape)
  /**
   * ScaleReduce: merges ordered partials (o, m, l) by the aligned binary tree and normalises the result (Infinite-LLM,
   * DistAttention).
   */
  | {
      readonly kind: 'merge';
      readonly parts: readonly { readonly o: BufferId; readonly max: BufferId; readonly sum: BufferId }[];
      readonly heads: number;
      readonly headDim: number;
      readonly out: BufferId;
    }
  /** Token rows that need logits, compacted (f32 to f32). */
  | { readonly kind: 'gather'; readonly x: BufferId; readonly out: BufferId }
  /**
   * On a model worker: the first heads * headDim columns of x (f32) are q. Normalised and rotated per head like `qkv`,
   * its rows go to `out` (query, rounded to the KV type) and from there to the attention workers, each the heads of its
   * KV heads. They compute attention over keys of earlier ranges at once. The scores are those of `attention`.
   */
  | ({
      readonly kind: 'sendQ';
      /** Number of the attention call within the program, from 0; the same in its `sendKV` and `waitPartial`. */
      readonly call: number;
      readonly layer: LayerRef;
      readonly rope: VectorId | undefined;
      readonly rotaryDim: number;
      readonly qNorm: VectorId | undefined;
      readonly eps: number;
      readonly scale: number;
      readonly softcap: number | undefined;
      /** (heads) */
      readonly slopes: VectorId | undefined;
      readonly x: BufferId;
      readonly out: BufferId;
    } & HeadShape)
  /**
   * On a model worker: the last 2 * kvHeads * headDim columns of x (f32) are k | v. With k normalised and rotated per
   * head like `qkv`, both go to `out` (query: k | v, rounded to the KV type) and from there to the attention workers.
   */
  | ({
      readonly kind: 'sendKV';
      readonly call: number;
      readonly layer: LayerRef;
      readonly rope: VectorId | undefined;
      readonly rotaryDim: number;
      readonly kNorm: VectorId | undefined;
      readonly eps: number;
      readonly x: BufferId;
      readonly out: BufferId;
    } & HeadShape)
  /**
   * On a model worker: waits for the attention of every row (tokens, heads * headDim) from the attention workers of the
   * layer. `sent` are the rows of its `sendQ` and `sendKV`; undefined: another program sent them, and `out` is written
   * before the step.
   */
  | ({
      readonly kind: 'waitPartial';
      readonly call: number;
      readonly layer: LayerRef;
      readonly sent: { readonly q: BufferId; readonly kv: BufferId } | undefined;
      readonly out: BufferId;
    } & HeadShape);

export interface HiddenStates {
  readonly buffer: BufferId;
  /** Index of the first op after them: this op and all later ones compute logits alone. */
  readonly end: number;
}

export interface Program {
  readonly buffers: readonly BufferSpec[];
  readonly ops: readonly Op[];
  /** f32 buffer of `logit` rows and vocabulary columns; sampling reads it. */
  readonly logits: BufferId | undefined;
  /** Hidden states of `logit` rows after the final norm (f32); undefined: the program has none. */
  readonly hidden: HiddenStates | undefined;
  readonly kvType: KvType;
  /** Layer groups that the ops refer to, in order; empty when no op accesses pages. */
  readonly groups: readonly LayerGroup[];
}
