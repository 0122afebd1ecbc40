// What a backend executes: a flat list of ops over preplanned buffers, as plain data.
import type { Activation } from '../util/model-config.ts';
import type { LayerGroup } from '../util/step.ts';

/** How the input rows of a linear layer are rounded before the product: the input form. */
export type InputForm = 'f32' | 'bf16' | 'int8';

/** What K, V and the query are rounded to, and the softmax weights P where the kernels multiply pairs of bf16. */
export type KvType = 'bf16' | 'f32';

export type BufferId = number;
/** Index into the linear layers that the loader packed for this program. */
export type LinearId = number;
/** Index into the float32 vectors (norm gains, biases, rope tables) of this program. */
export type VectorId = number;

/**
 * A buffer holds one row for each token of the step, or for each row that needs logits.
 * `f32`: plain float32. `input`: rows rounded to `form`, in the layout the backend's linear kernels want (opaque).
 * `query`: rows rounded to the KV type, heads outermost inside a row (opaque).
 */
export type BufferSpec = {
  readonly rows: 'token' | 'logit';
  readonly columns: number;
} & ({ readonly kind: 'f32' } | { readonly kind: 'input'; readonly form: InputForm } | { readonly kind: 'query' });

/** Which layer's pages an op touches: `index` is the layer's place inside its layer group. */
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
  /** out[t] = table[token[t]] * scale, plus row position[t] + offset of the table `positions` (rows, columns of out). */
  | {
      readonly kind: 'embed';
      readonly table: LinearId;
      readonly scale: number;
      readonly positions: { readonly table: VectorId; readonly offset: number } | undefined;
      readonly out: BufferId;
    }
  /**
   * With `residual`: residual += x in place, then out = norm(residual) * gain + bias. Without: out = norm(x) * gain + bias.
   * rms: norm(x) = x / sqrt(mean(x^2) + eps). layer: norm(x) = (x - mean) / sqrt(variance + eps).
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
  /** WAIT_LAYER: keys and values of this layer, in order of computation, that are still on their way to their pages are waited for. */
  | { readonly kind: 'waitLayer'; readonly layer: number }
  /** LAYER_READY: K and V of the first `layers` layers of this step are in their pages, and may leave while the rest is computed. */
  | { readonly kind: 'layerReady'; readonly layers: number }
  /** WAIT_ROWS: f32 rows that the layers before left, waited for and taken from the step's `rowsIn`; without that `out` holds what was written to it. */
  | { readonly kind: 'waitRows'; readonly out: BufferId }
  /** ROWS_READY: f32 rows for the layers that come next lie in the step's `rowsOut`, and may leave. */
  | { readonly kind: 'rowsReady'; readonly x: BufferId }
  /**
   * Causal attention of each row over its sequence's keys 0..position, with `window` (that of the layer's group) the last `window` of
   * them. The score of a key is s = scale * (q . k), then softcap * tanh(s / softcap), then plus slopes[head] * (key position - row
   * position) (ALiBi), whatever is given. `out` is `f32` or `input` and holds the normalised result; with `stats`, `out` is f32 and unnormalised (sum of p v), and the running max m (of the scores) and the sum
   * l go to two f32 buffers of `heads` columns.
   */
  | ({
      readonly kind: 'attention';
      readonly layer: LayerRef;
      readonly scale: number;
      readonly window: number | undefined;
      readonly softcap: number | undefined;
      /** (heads) */
      readonly slopes: VectorId | undefined;
      readonly q: BufferId;
      readonly stats: { readonly max: BufferId; readonly sum: BufferId } | undefined;
      readonly out: BufferId;
    } & HeadShape)
  /** ScaleReduce: merges partials (o, m, l) given in order, by the aligned binary tree, and normalises (Infinite-LLM, DistAttention). */
  | {
      readonly kind: 'merge';
      readonly parts: readonly { readonly o: BufferId; readonly max: BufferId; readonly sum: BufferId }[];
      readonly heads: number;
      readonly headDim: number;
      readonly out: BufferId;
    }
  /** Token rows that need logits, compacted (f32 to f32). */
  | { readonly kind: 'gather'; readonly x: BufferId; readonly out: BufferId };

export interface Program {
  readonly buffers: readonly BufferSpec[];
  readonly ops: readonly Op[];
  /** f32 buffer of `logit` rows and vocabulary columns; sampling reads it. */
  readonly logits: BufferId | undefined;
  readonly kvType: KvType;
  /** Layer groups that the ops name, in order; empty where no op touches pages. */
  readonly groups: readonly LayerGroup[];
}
