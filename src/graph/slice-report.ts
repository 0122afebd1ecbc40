// Slices of a model as a person reads them: named operations, bytes per token, and runs of slices that are alike.
import { type AttentionNode, type Graph, type Node, nodeInputs, nodeOutputs, type TensorId } from './graph.ts';
import { bytesPerToken, slice } from './slice.ts';

export interface SliceReport {
  /** In the order of execution; names of checkpoint tensors. */
  readonly operations: readonly string[];
  /** Tensors that the next slice receives besides the attention. */
  readonly carried: readonly { readonly tensor: string; readonly bytesPerToken: number }[];
  readonly carriedBytesPerToken: number;
  /** The attention after the slice. */
  readonly attention: AttentionReport | undefined;
}

export interface AttentionReport {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly window: number | undefined;
  readonly softcap: number | undefined;
  readonly alibi: boolean;
  /** Sent to the attention workers, and returned by them. */
  readonly qBytesPerToken: number;
  readonly kvBytesPerToken: number;
  readonly partialBytesPerToken: number;
}

/** Describes the slices of a model. */
export function sliceReports(model: Graph): readonly SliceReport[] {
  const names = new OperationNames(model);
  return slice(model).map(({ graph, attention, carriedBytesPerToken }) => ({
    operations: graph.nodes.map((node) => names.of(node)),
    carried: graph.outputs.map((id) => ({ tensor: names.ofTensor(id), bytesPerToken: bytesPerToken(model, id) })),
    carriedBytesPerToken,
    attention: attention === undefined ? undefined : attentionReport(attention),
  }));
}

/** Q, K, V and the result of attention have the KV type, bf16 by default. */
const valueBytes = 2;

function attentionReport({ heads, kvHeads, headDim, window, softcap, alibi }: AttentionNode): AttentionReport {
  const rowBytes = heads * headDim * valueBytes;
  return {
    ...{ heads, kvHeads, headDim, window, softcap, alibi },
    qBytesPerToken: rowBytes,
    kvBytesPerToken: 2 * kvHeads * headDim * valueBytes,
    partialBytesPerToken: rowBytes,
  };
}

/** Consecutive slices that differ in the number of their layer alone. */
export interface SliceGroup {
  readonly first: number;
  readonly last: number;
  /** With the number of the slice as `N`, if there are several. */
  readonly operations: readonly string[];
  /** Names of the carried tensors, likewise. */
  readonly carried: readonly string[];
  readonly slice: SliceReport;
}

export function groupsOf(slices: readonly SliceReport[]): readonly SliceGroup[] {
  const groups: SliceGroup[] = [];
  for (const [index, slice] of slices.entries()) {
    const before = groups.at(-1);
    const alike = before === undefined ? undefined : relativeNames(before.slice, before.first);
    const names = relativeNames(slice, index);
    if (before !== undefined && JSON.stringify(alike) === JSON.stringify(names))
      groups[groups.length - 1] = { ...before, last: index, ...names };
    else {
      const carried = slice.carried.map(({ tensor }) => tensor);
      groups.push({ first: index, last: index, operations: slice.operations, carried, slice });
    }
  }
  return groups;
}

function relativeNames({ operations, carried }: SliceReport, index: number) {
  return {
    operations: operations.map((name) => relative(name, index)),
    carried: carried.map(({ tensor }) => relative(tensor, index)),
  };
}

/** The name with its layer relative to the slice: `N` or `N-1`. */
function relative(name: string, index: number): string {
  return name.replaceAll(/(?<=\.)\d+(?=\.)/g, (layer) => {
    const distance = Number(layer) - index;
    return distance === 0 ? 'N' : `N${distance < 0 ? '' : '+'}${distance}`;
  });
}

export function titleOf({ first, last }: SliceGroup): string {
  return first === last ? `Slice ${first}` : `Slices ${first} to ${last} (N)`;
}

/** Names nodes of a model, or of its slices, as `linear model.layers.0.self_attn.q_proj`. */
class OperationNames {
  readonly #nodes = new Map<TensorId, Node>();

  constructor(model: Graph) {
    for (const node of model.nodes) for (const out of nodeOutputs(node)) this.#nodes.set(out, node);
  }

  of(node: Node): string {
    if (node.kind === 'sendQ' || node.kind === 'sendKV' || node.kind === 'waitPartial') return node.kind;
    return `${node.kind} ${this.#stemOf(node)}`;
  }

  /** A tensor has the name of the node that writes it. */
  ofTensor(tensor: TensorId): string {
    const node = this.#nodes.get(tensor);
    return node === undefined ? 'input' : this.of(node);
  }

  /** The stem of the node's own weights, or of the nearest weights before it: of an add, those of what it adds. */
  #stemOf(node: Node): string {
    switch (node.kind) {
      case 'embed':
        return stem(node.weight.name);
      case 'norm':
        return stem(node.gain.name);
      case 'linear':
        return node.segments.map(({ name }) => stem(name)).join(' | ');
      case 'attention':
        return `of layer ${node.layer.index} of group ${node.layer.group}`;
      default: {
        const before = this.#nodes.get(nodeInputs(node).at(node.kind === 'add' ? -1 : 0) ?? -1);
        return before === undefined ? 'of the inputs' : this.#stemOf(before);
      }
    }
  }
}

function stem(name: string): string {
  return name.replace(/\.weight$/, '');
}
