// Turns a fused graph into a program, and lists the weights and vectors that the program's handles must stand for.
import type { LayerGroup } from '../util/step.ts';
import { type Graph, type Node, nodeInputs, type TensorId, tensorSpec, type WeightRef } from './graph.ts';
import type { BufferId, BufferSpec, InputForm, KvType, LinearId, Op, Program, VectorId } from './program.ts';
import type { RopeSpec } from './rope.ts';

/** A linear layer to pack: its segments share `columns` inputs, and their outputs follow one another. */
export interface WantedLinear {
  readonly columns: number;
  readonly segments: readonly { readonly name: string; readonly rows: number }[];
  readonly inputs: InputForm;
}

/** A float32 vector to load: stored tensors (or zeros) end to end, or a rope table. */
export type WantedVector =
  | {
      readonly kind: 'tensors';
      readonly parts: readonly { readonly name: string | undefined; readonly length: number }[];
    }
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
  for (const node of graph.nodes) compiler.emit(node);
  return compiler.finish();
}

/** How a buffer holds a tensor: plain float32, or rounded to an input form. */
type Storage = 'plain' | InputForm;
/** Norm, attention and glu can round what they write to the form that its reader wants. */
const roundsOutput: ReadonlySet<Node['kind']> = new Set(['norm', 'attention', 'glu']);

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

  constructor(graph: Graph, options: CompileOptions) {
    this.#graph = graph;
    this.#options = options;
    this.#wanted = wantedStorage(graph, (segments) => this.#inputForm(segments));
  }

  emit(node: Node): void {
    switch (node.kind) {
      case 'embed':
        this.#push({
          kind: 'embed',
          table: this.#linear([node.weight]),
          scale: node.scale,
          positions: undefined,
          out: this.#define(node.out),
        });
        break;
      case 'norm':
        this.#norm(node);
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
      case 'add':
        throw new Error('Cannot compile the graph: a residual add has no norm after it to happen in: no op adds alone');
    }
    this.#convert(node.out);
  }

  finish(): Compiled {
    const logits = this.#read(this.#graph.logits);
    const groups = groupsOf(this.#graph);
    const program = { buffers: this.#buffers, ops: this.#ops, logits, kvType: this.#options.kvType, groups };
    return { program, linears: this.#linears.values, vectors: this.#vectors.values };
  }

  #norm(node: Node & { kind: 'norm' }): void {
    const { x, add, eps } = node;
    const gain = this.#vector({ kind: 'tensors', parts: [{ name: node.gain, length: this.#columns(node.out) }] });
    const residual = add === undefined ? undefined : this.#read(add.residual);
    const out = this.#define(node.out, node.kind);
    this.#push({ kind: 'norm', style: 'rms', x: this.#read(x), residual, gain, bias: undefined, eps, out });
    if (add !== undefined && residual !== undefined) this.#held.set(add.sum, new Map([['plain', residual]]));
  }

  #product(node: Node & { kind: 'linear' }): void {
    const form = this.#inputForm(node.segments);
    const parts = node.segments.map((segment) => ({ name: segment.bias, length: segment.rows }));
    const bias = parts.some((part) => part.name !== undefined) ? this.#vector({ kind: 'tensors', parts }) : undefined;
    const x = this.#read(node.x, form);
    this.#push({ kind: 'linear', weight: this.#linear(node.segments), bias, x, out: this.#define(node.out) });
  }

  #attention(node: Node & { kind: 'attention' }): void {
    const { layer, heads, kvHeads, headDim, rope, eps, scale } = node;
    const gain = (name: string | undefined) =>
      name === undefined ? undefined : this.#vector({ kind: 'tensors', parts: [{ name, length: headDim }] });
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
    const out = this.#define(node.out, node.kind);
    const plain = { window: undefined, softcap: undefined, slopes: undefined, stats: undefined };
    this.#push({ kind: 'attention', layer, heads, kvHeads, headDim, scale, ...plain, q, out });
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

  #columns(tensor: TensorId): number {
    return tensorSpec(this.#graph, tensor).columns;
  }

  #push(op: Op): void {
    this.#ops.push(op);
  }
}

/** Layer groups of the graph's attention nodes. */
function groupsOf(graph: Graph): readonly LayerGroup[] {
  const layers: number[] = [];
  for (const node of graph.nodes) {
    if (node.kind !== 'attention') continue;
    const { group, index } = node.layer;
    layers[group] = Math.max(layers[group] ?? 0, index + 1);
  }
  return Array.from(layers, (count) => ({ layers: count ?? 0, window: undefined }));
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
