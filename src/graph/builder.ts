// Builds a graph: a model calls these methods in the order of its forward pass, with the stems of checkpoint names.
import type { Activation } from '../util/model-config.ts';
import type { LayerGroup } from '../util/step.ts';
import type { GainRef, Graph, Node, PositionTable, TensorId, TensorSpec, WeightRef } from './graph.ts';
import type { HeadShape, LayerRef } from './program.ts';
import type { RopeSpec } from './rope.ts';

export interface RmsNormOptions {
  readonly eps: number;
  /** Added to the stored gains: 1 when the file stores w of (1 + w). */
  readonly gainOffset?: number;
}

export interface EmbedOptions {
  readonly scale?: number;
  /** Learned positions, added to the embeddings. */
  readonly positions?: PositionTable;
}

export interface AttentionOptions extends HeadShape {
  readonly rope?: RopeSpec | undefined;
  /** Stems of the RMSNorm gains for each head of q and of k. */
  readonly qNorm?: string;
  readonly kNorm?: string;
  readonly norm?: RmsNormOptions;
  /** Factor of q k^T before the softmax; 1 / sqrt(headDim) by default. */
  readonly scale?: number;
  /** Scores s become softcap * tanh(s / softcap). */
  readonly softcap?: number | undefined;
  /** Adds a bias that decreases with distance by a slope for each head (ALiBi). */
  readonly alibi?: boolean;
  /** Rows attend to all keys of their sequences (encoders). */
  readonly bidirectional?: boolean | undefined;
  /**
   * Tokens that a row attends to, itself included. Layers with the same window form a layer group and share a block
   * table.
   */
  readonly window?: number | undefined;
}

export class GraphBuilder {
  readonly #tensors: TensorSpec[] = [];
  readonly #nodes: Node[] = [];
  readonly #groups: { layers: number; readonly window: number | undefined }[] = [];
  readonly #vocabularyNames = new Set<string>();

  /** Rows of an embedding table (vocabulary, hidden). */
  embed(stem: string, vocabulary: number, hidden: number, options: EmbedOptions = {}): TensorId {
    const weight: WeightRef = { name: `${stem}.weight`, rows: vocabulary, columns: hidden, bias: undefined };
    this.#vocabularyNames.add(weight.name);
    const { scale = 1, positions } = options;
    return this.#emit(hidden, (out) => ({ kind: 'embed', weight, scale, positions, out }));
  }

  rmsNorm(x: TensorId, stem: string, options: RmsNormOptions): TensorId {
    const gain = gainOf(stem, options);
    return this.#norm(x, { style: 'rms', gain, bias: undefined, eps: options.eps });
  }

  layerNorm(x: TensorId, stem: string, eps: number): TensorId {
    return this.#norm(x, { style: 'layer', gain: gainOf(stem, { eps }), bias: `${stem}.bias`, eps });
  }

  /** x times the transposed matrix (rows, columns of x), plus the bias if any. */
  linear(x: TensorId, stem: string, rows: number, bias = false): TensorId {
    const name = `${stem}.weight`;
    const segments: WeightRef[] = [{ name, rows, columns: this.columns(x), bias: bias ? `${stem}.bias` : undefined }];
    return this.#emit(rows, (out) => ({ kind: 'linear', x, segments, out }));
  }

  /** Causal self-attention over paged K and V. The tensors of `qkv`, concatenated, are q | k | v. */
  attention(qkv: readonly TensorId[], options: AttentionOptions): TensorId {
    const { heads, kvHeads, headDim, rope, qNorm, kNorm, norm = { eps: 0 }, softcap, window, alibi = false } = options;
    const columns = qkv.reduce((sum, tensor) => sum + this.columns(tensor), 0);
    if (columns !== (heads + 2 * kvHeads) * headDim) {
      throw new Error(
        `Cannot build attention: q, k and v have ${columns} columns: ${heads} + 2 x ${kvHeads} heads of ${headDim} expected`,
      );
    }
    const layer = this.#nextLayer(window);
    return this.#emit(heads * headDim, (out) => ({
      kind: 'attention',
      layer,
      heads,
      kvHeads,
      headDim,
      rope,
      qNorm: qNorm === undefined ? undefined : gainOf(qNorm, norm),
      kNorm: kNorm === undefined ? undefined : gainOf(kNorm, norm),
      eps: norm.eps,
      scale: options.scale ?? 1 / Math.sqrt(headDim),
      softcap,
      window,
      alibi,
      ...(options.bidirectional === true && { bidirectional: true }),
      x: qkv,
      out,
    }));
  }

  activate(x: TensorId, activation: Activation): TensorId {
    return this.#emit(this.columns(x), (out) => ({ kind: 'activate', activation, x, out }));
  }

  /** activation(gate) * up. The tensors of `gateUp`, concatenated, are gate | up. */
  glu(gateUp: readonly TensorId[], activation: Activation): TensorId {
    const columns = gateUp.reduce((sum, tensor) => sum + this.columns(tensor), 0);
    return this.#emit(columns / 2, (out) => ({ kind: 'glu', activation, x: gateUp, out }));
  }

  /** `left` is the residual stream. */
  add(left: TensorId, right: TensorId): TensorId {
    return this.#emit(this.columns(left), (out) => ({ kind: 'add', left, right, out }));
  }

  /** The projection to the vocabulary, which ends the graph. The compiler chooses its rows. */
  head(x: TensorId, stem: string, vocabulary: number, softcap?: number): Graph {
    this.#vocabularyNames.add(`${stem}.weight`);
    let logits = this.linear(x, stem, vocabulary);
    if (softcap !== undefined) logits = this.softcap(logits, softcap);
    return this.#graph(logits, x);
  }

  /** The graph ends with hidden states, without a projection to the vocabulary. */
  encoded(x: TensorId): Graph {
    return this.#graph(undefined, x);
  }

  /** cap * tanh(x / cap) */
  softcap(x: TensorId, cap: number): TensorId {
    return this.#emit(this.columns(x), (out) => ({ kind: 'softcap', cap, x, out }));
  }

  #graph(logits: TensorId | undefined, hidden: TensorId): Graph {
    const groups: readonly LayerGroup[] = this.#groups;
    return {
      tensors: this.#tensors,
      nodes: this.#nodes,
      inputs: [],
      outputs: [],
      logits,
      hidden,
      groups,
      vocabularyNames: this.#vocabularyNames,
    };
  }

  columns(tensor: TensorId): number {
    const spec = this.#tensors[tensor];
    if (spec === undefined) throw new RangeError(`Cannot read tensor: no such id in the graph: ${tensor}`);
    return spec.columns;
  }

  /** The next layer in the group of this window. Groups are numbered in the order of their first layers. */
  #nextLayer(window: number | undefined): LayerRef {
    const known = this.#groups.findIndex((group) => group.window === window);
    const group = known >= 0 ? known : this.#groups.push({ layers: 0, window }) - 1;
    return { group, index: this.#groups[group].layers++ };
  }

  #norm(x: TensorId, norm: Pick<Node & { kind: 'norm' }, 'style' | 'gain' | 'bias' | 'eps'>): TensorId {
    return this.#emit(this.columns(x), (out) => ({ kind: 'norm', x, add: undefined, ...norm, out }));
  }

  #emit(columns: number, node: (out: TensorId) => Node): TensorId {
    const out = this.#tensors.push({ rows: 'token', columns }) - 1;
    this.#nodes.push(node(out));
    return out;
  }
}

function gainOf(stem: string, { gainOffset = 0 }: RmsNormOptions): GainRef {
  return { name: `${stem}.weight`, offset: gainOffset };
}
