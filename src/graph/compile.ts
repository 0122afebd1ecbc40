// Turns a fused graph into a program, and lists the weights and vectors that the program's handles must stand for.
import {
  type GainRef,
  type Graph,
  type Node,
  nodeInputs,
  type PositionTable,
  readersOf,
  type TensorId,
  tensorSpec,
  type WeightRef,
} from './graph.ts';
import type { BufferId, BufferSpec, InputForm, KvType, LinearId, Op, Program, VectorId } from './program.ts';
import type { RopeSpec } from './rope.ts';

/** A linear layer to pack: its segments share `columns` inputs, and their outputs follow one another. */
export interface WantedLinear {
  readonly columns: number;
  readonly segments: readonly { readonly name: string; readonly rows: number }[];
  readonly inputs: InputForm;
}

/** A float32 vector to load. */
export type WantedVector =
  /** Stored vectors (or zeros) end to end, to which `offset` is added. */
  | {
      readonly kind: 'tensors';
      readonly parts: readonly { readonly name: string | undefined; readonly length: number }[];
      readonly offset: number;
    }
  /** A stored table (rows, columns) of learned positions, as far as the context needs it. */
  | { readonly kind: 'positions'; readonly table: PositionTable; readonly columns: number }
  /** ALiBi slopes (heads). */
  | { readonly kind: 'slopes'; readonly heads: number }
  | { readonly kind: 'rope'; readonly spec: RopeSpec };

export interface CompileOptions {
  /** Input form of a linear layer made of these stored matrices. */
  readonly inputForm: (names: readonly string[]) => InputForm;
  readonly kvType: KvType;
}

/** `program.ops` name linears and vectors by their index in these lists; every tensor has a buffer of its own, for backends to place. */
export interface Compiled {
  readonly program: Program;
  readonly linears: readonly WantedLinear[];
  readonly vectors: readonly WantedVector[];
}

export function compile(graph: Graph, options: CompileOptions): Compiled {
  const compiler = new Compiler(graph, options);
  for (const [index, node] of graph.nodes.entries()) compiler.emit(node, index);
  return compiler.finish();
}

/** How a buffer holds a tensor: plain float32, or rounded to an input form. */
type Storage = 'plain' | InputForm;
/** These can round what they write to the form that its reader wants. */
const roundsOutput: ReadonlySet<Node['kind']> = new Set(['norm', 'attention', 'glu', 'activate']);

class Compiler {
  readonly #graph: Graph;
  readonly #options: CompileOptions;
  readonly #buffers: BufferSpec[] = [];
  readonly #ops: Op[] = [];
  readonly #linears = new Keyed<WantedLinear>();
  readonly #vectors = new Keyed<WantedVector>();
  /** Buffers that hold a tensor. */
  readonly #held = new Map<TensorId, Map<Storage, BufferId>>();
  readonly #wanted: ReadonlyMap<TensorId, ReadonlySet<Storage>>;
  readonly #readers: readonly (readonly number[])[];
  #readyLayers = 0;

  constructor(graph: Graph, options: CompileOptions) {
    this.#graph = graph;
    this.#options = options;
    this.#readers = readersOf(graph);
    this.#wanted = wantedStorage(graph, (segments) => this.#inputForm(segments));
  }

  emit(node: Node, index: number): void {
    switch (node.kind) {
      case 'embed':
        this.#embed(node);
        break;
      case 'norm':
        this.#norm(node, index);
        break;
      case 'linear':
        this.#product(node);
        break;
      case 'glu':
        this.#push({
          kind: 'glu',
          activation: node.activation,
          x: this.#single(node),
          out: this.#define(node.out, node.kind),
        });
        break;
      case 'attention':
        this.#attention(node);
        break;
      case 'gather':
        this.#push({ kind: 'gather', x: this.#read(node.x), out: this.#define(node.out) });
        break;
      case 'activate': {
        const { kind, activation } = node;
        this.#push({ kind, activation, x: this.#read(node.x), out: this.#define(node.out, kind) });
        break;
      }
      case 'add':
        this.#push({ kind: 'add', x: this.#read(node.right), residual: this.#takeOver(node.left, index, node.out) });
        break;
      case 'softcap':
        this.#push({ kind: 'softcap', cap: node.cap, x: this.#takeOver(node.x, index, node.out) });
        break;
    }
    this.#convert(node.out);
  }

  finish(): Compiled {
    const logits = this.#read(this.#graph.logits);
    const { kvType } = this.#options;
    const program = { buffers: this.#buffers, ops: this.#ops, logits, kvType, groups: this.#graph.groups };
    return { program, linears: this.#linears.values, vectors: this.#vectors.values };
  }

  #norm(node: Node & { kind: 'norm' }, index: number): void {
    const { style, add, eps } = node;
    const columns = this.#columns(node.out);
    const gain = this.#gain(node.gain, columns);
    const bias = node.bias === undefined ? undefined : this.#gain({ name: node.bias, offset: 0 }, columns);
    const x = this.#read(node.x);
    const residual = add === undefined ? undefined : this.#takeOver(add.residual, index, add.sum);
    this.#push({ kind: 'norm', style, x, residual, gain, bias, eps, out: this.#define(node.out, node.kind) });
  }

  #embed(node: Node & { kind: 'embed' }): void {
    const { weight, scale, positions: table, out } = node;
    const positions =
      table === undefined
        ? undefined
        : { table: this.#vector({ kind: 'positions', table, columns: weight.columns }), offset: table.offset };
    this.#push({ kind: 'embed', table: this.#linear([weight]), scale, positions, out: this.#define(out) });
  }

  /** The buffer of a tensor, which the node at `index` changes in place into another: no later node may read it. */
  #takeOver(tensor: TensorId, index: number, into: TensorId): BufferId {
    if (this.#readers[tensor]?.at(-1) !== index)
      throw new Error(`Cannot compile the graph: a tensor that is changed in place is read again: id ${tensor}`);
    const buffer = this.#read(tensor);
    this.#held.set(into, new Map([['plain', buffer]]));
    return buffer;
  }

  #product(node: Node & { kind: 'linear' }): void {
    const form = this.#inputForm(node.segments);
    const parts = node.segments.map((segment) => ({ name: segment.bias, length: segment.rows }));
    const biased = parts.some((part) => part.name !== undefined);
    const bias = biased ? this.#vector({ kind: 'tensors', parts, offset: 0 }) : undefined;
    const x = this.#read(node.x, form);
    this.#push({ kind: 'linear', weight: this.#linear(node.segments), bias, x, out: this.#define(node.out) });
  }

  #attention(node: Node & { kind: 'attention' }): void {
    const { layer, heads, kvHeads, headDim, rope, eps, scale, window, softcap } = node;
    const gain = (ref: GainRef | undefined) => (ref === undefined ? undefined : this.#gain(ref, headDim));
    const q = this.#buffers.push({ rows: 'token', columns: heads * headDim, kind: 'query' }) - 1;
    this.#push({
      kind: 'qkv',
      layer,
      heads,
      kvHeads,
      headDim,
      rope: rope === undefined ? undefined : this.#vector({ kind: 'rope', spec: rope }),
      rotaryDim: rope?.rotaryDim ?? 0,
      qNorm: gain(node.qNorm),
      kNorm: gain(node.kNorm),
      eps,
      x: this.#single(node),
      out: q,
    });
    // First: what leaves with this layer may be what is waited for.
    this.#push({ kind: 'waitLayer', layer: this.#readyLayers });
    this.#push({ kind: 'layerReady', layers: ++this.#readyLayers });
    const out = this.#define(node.out, node.kind);
    const slopes = node.alibi ? this.#vector({ kind: 'slopes', heads }) : undefined;
    const scores = { scale, window, softcap, slopes, stats: undefined };
    this.#push({ kind: 'attention', layer, heads, kvHeads, headDim, ...scores, q, out });
  }

  /** Rounds a tensor to the forms that its readers want and its own op did not write. */
  #convert(tensor: TensorId): void {
    for (const storage of this.#wanted.get(tensor) ?? []) {
      if (this.#held.get(tensor)?.has(storage)) continue;
      this.#push({ kind: 'convert', x: this.#read(tensor), out: this.#hold(tensor, storage) });
    }
  }

  /** The buffer that the tensor's own op writes: the one form that all readers want if the op can, else float32. */
  #define(tensor: TensorId, kind?: Node['kind']): BufferId {
    const wanted = [...(this.#wanted.get(tensor) ?? [])];
    const only = wanted.length === 1 && kind !== undefined && roundsOutput.has(kind) ? wanted[0] : undefined;
    return this.#hold(tensor, only ?? 'plain');
  }

  #hold(tensor: TensorId, storage: Storage): BufferId {
    const { rows, columns } = tensorSpec(this.#graph, tensor);
    const spec: BufferSpec =
      storage === 'plain' ? { rows, columns, kind: 'f32' } : { rows, columns, kind: 'input', form: storage };
    const buffer = this.#buffers.push(spec) - 1;
    const held = this.#held.get(tensor) ?? new Map<Storage, BufferId>();
    this.#held.set(tensor, held.set(storage, buffer));
    return buffer;
  }

  #read(tensor: TensorId, storage: Storage = 'plain'): BufferId {
    const buffer = this.#held.get(tensor)?.get(storage);
    if (buffer === undefined)
      throw new Error(`Cannot compile the graph: no buffer holds a tensor: id ${tensor}, ${storage}`);
    return buffer;
  }

  #single(node: Node & { kind: 'glu' | 'attention' }): BufferId {
    const [x, ...more] = node.x;
    if (x === undefined || more.length > 0) {
      throw new Error(
        `Cannot compile the graph: ${node.kind} reads ${node.x.length} tensors: its linears do not share their input`,
      );
    }
    return this.#read(x);
  }

  #linear(segments: readonly WeightRef[]): LinearId {
    const wanted = {
      columns: segments[0]?.columns ?? 0,
      segments: segments.map(({ name, rows }) => ({ name, rows })),
      inputs: this.#inputForm(segments),
    };
    return this.#linears.id(wanted);
  }

  #inputForm(segments: readonly WeightRef[]): InputForm {
    return this.#options.inputForm(segments.map((segment) => segment.name));
  }

  #vector(wanted: WantedVector): VectorId {
    return this.#vectors.id(wanted);
  }

  #gain({ name, offset }: GainRef, length: number): VectorId {
    return this.#vector({ kind: 'tensors', parts: [{ name, length }], offset });
  }

  #columns(tensor: TensorId): number {
    return tensorSpec(this.#graph, tensor).columns;
  }

  #push(op: Op): void {
    this.#ops.push(op);
  }
}

/** How the readers of each tensor want it stored. */
function wantedStorage(
  graph: Graph,
  inputForm: (segments: readonly WeightRef[]) => InputForm,
): ReadonlyMap<TensorId, ReadonlySet<Storage>> {
  const wanted = new Map<TensorId, Set<Storage>>();
  for (const node of graph.nodes) {
    const storage = node.kind === 'linear' ? inputForm(node.segments) : 'plain';
    for (const x of nodeInputs(node)) wanted.set(x, (wanted.get(x) ?? new Set()).add(storage));
  }
  return wanted;
}

/** Values without duplicates; an id is the place in the list. */
class Keyed<T> {
  readonly values: T[] = [];
  readonly #ids = new Map<string, number>();

  id(value: T): number {
    const key = JSON.stringify(value);
    const known = this.#ids.get(key);
    if (known !== undefined) return known;
    const id = this.values.push(value) - 1;
    this.#ids.set(key, id);
    return id;
  }
}
