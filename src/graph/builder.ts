// Writes a graph down: a model is a function that calls these in the order of its forward pass.
import type { Graph, Node, TensorId, TensorSpec, WeightRef } from './graph.ts';
import type { HeadShape } from './program.ts';
import type { RopeSpec } from './rope.ts';

export interface AttentionOptions extends HeadShape {
  readonly rope: RopeSpec | undefined;
  /** Gains of the rms norm over each head of q and of k. */
  readonly qNorm?: string;
  readonly kNorm?: string;
  readonly eps?: number;
  /** Factor of q k^T before the softmax; 1 / sqrt(headDim) unless given. */
  readonly scale?: number;
  /** Layers of one group share a block table; all are in group 0 unless given. */
  readonly group?: number;
}

export class GraphBuilder {
  readonly #tensors: TensorSpec[] = [];
  readonly #nodes: Node[] = [];
  readonly #layersOfGroup: number[] = [];

  /** Rows of an embedding table (vocabulary, hidden). */
  embed(name: string, vocabulary: number, hidden: number, scale = 1): TensorId {
    const weight: WeightRef = { name, rows: vocabulary, columns: hidden, bias: undefined };
    return this.#emit(hidden, (out) => ({ kind: 'embed', weight, scale, out }));
  }

  rmsNorm(x: TensorId, gain: string, eps: number): TensorId {
    return this.#emit(this.columns(x), (out) => ({ kind: 'norm', x, add: undefined, gain, eps, out }));
  }

  /** x times the transposed matrix `name` (rows, columns of x), plus the vector `bias` if named. */
  linear(x: TensorId, name: string, rows: number, bias?: string): TensorId {
    const segments: WeightRef[] = [{ name, rows, columns: this.columns(x), bias }];
    return this.#emit(rows, (out) => ({ kind: 'linear', x, segments, out }));
  }

  /** Causal self-attention over paged K and V; `qkv` are tensors that side by side are q | k | v. */
  attention(qkv: readonly TensorId[], options: AttentionOptions): TensorId {
    const { heads, kvHeads, headDim, rope } = options;
    const columns = qkv.reduce((sum, tensor) => sum + this.columns(tensor), 0);
    if (columns !== (heads + 2 * kvHeads) * headDim) {
      throw new Error(
        `Cannot build attention: q, k and v have ${columns} columns: ${heads} + 2 x ${kvHeads} heads of ${headDim} expected`,
      );
    }
    const group = options.group ?? 0;
    const index = this.#layersOfGroup[group] ?? 0;
    this.#layersOfGroup[group] = index + 1;
    return this.#emit(heads * headDim, (out) => ({
      kind: 'attention',
      layer: { group, index },
      heads,
      kvHeads,
      headDim,
      rope,
      qNorm: options.qNorm,
      kNorm: options.kNorm,
      eps: options.eps ?? 0,
      scale: options.scale ?? 1 / Math.sqrt(headDim),
      x: qkv,
      out,
    }));
  }

  /** silu(gate) * up */
  swiglu(gate: TensorId, up: TensorId): TensorId {
    return this.#emit(this.columns(up), (out) => ({ kind: 'glu', activation: 'silu', x: [gate, up], out }));
  }

  /** `left` is the residual stream. */
  add(left: TensorId, right: TensorId): TensorId {
    return this.#emit(this.columns(left), (out) => ({ kind: 'add', left, right, out }));
  }

  /** The projection to the vocabulary ends the graph; which rows it runs on is the compiler's business. */
  head(x: TensorId, name: string, vocabulary: number, bias?: string): Graph {
    const logits = this.linear(x, name, vocabulary, bias);
    return { tensors: this.#tensors, nodes: this.#nodes, logits };
  }

  columns(tensor: TensorId): number {
    const spec = this.#tensors[tensor];
    if (spec === undefined) throw new RangeError(`Cannot read tensor: no such id in the graph: ${tensor}`);
    return spec.columns;
  }

  #emit(columns: number, node: (out: TensorId) => Node): TensorId {
    const out = this.#tensors.push({ rows: 'token', columns }) - 1;
    this.#nodes.push(node(out));
    return out;
  }
}
