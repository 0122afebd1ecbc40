// Compiles a fused graph to a program, and lists the weights and vectors that its ids refer to.

import { assertNever } from '../util/assert-never.ts';
import type { KvType } from '../util/kv-type.ts';
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
import type { BufferId, BufferSpec, InputForm, LinearId, Op, Program, VectorId } from './program.ts';
import type { RopeSpec } from './rope.ts';

/** A linear layer to pack. Its segments share `columns` inputs; their outputs are concatenated. */
export interface LinearSource {
  readonly columns: number;
  readonly segments: readonly { readonly name: string; readonly rows: number }[];
  readonly inputs: InputForm;
}

/** A float32 vector to load. */
export type VectorSource =
  /** Stored vectors (or zeros), concatenated, plus `offset`. */
  | {
      readonly kind: 'tensors';
      readonly parts: readonly { readonly name: string | undefined; readonly length: number }[];
      readonly offset: number;
    }
  /** A stored table (types, rows, columns) of learned positions, up to the context length. */
  | { readonly kind: 'positions'; readonly table: PositionTable; readonly columns: number }
  /** ALiBi slopes (heads). */
  | { readonly kind: 'slopes'; readonly heads: number }
  | { readonly kind: 'rope'; readonly spec: RopeSpec };

export interface CompileOptions {
  /** Input form of a linear layer with these stored matrices. */
  readonly inputForm: (names: readonly string[]) => InputForm;
  readonly kvType: KvType;
  /** The program keeps the hidden states after the final norm as float32. */
  readonly keepsHidden?: boolean;
}

/**
 * `program.ops` refer to linears and vectors by index in these lists. Every tensor has its own buffer until
 * planBuffers.
 */
export interface Compiled {
  readonly program: Program;
  readonly linears: readonly LinearSource[];
  readonly vectors: readonly VectorSource[];
  /** f32 buffers of the graph's inputs, to be written before a step. */
  readonly inputs: readonly BufferId[];
  /** f32 buffers of the graph's outputs, to be read after a step. */
  readonly outputs: readonly BufferId[];
}

export function compile(graph: Graph, options: CompileOptions): Compiled {
  const kept = options.keepsHidden === true ? graph : { ...graph, hidden: undefined };
  const compiler = new Compiler(kept, options);
  compiler.begin();
  for (const [index, node] of kept.nodes.entries()) compiler.emit(node, index);
  return compiler.finish();
}

/** How a buffer holds a tensor: plain float32, or rounded to an input form. */
type Storage = 'plain' | InputForm;
/** Ops that can write their output in the form that its reader requires. */
const roundsOutput: ReadonlySet<Node['kind']> = new Set(['norm', 'attention', 'waitPartial', 'glu', 'activate']);

class Compiler {
  readonly #graph: Graph;
  readonly #options: CompileOptions;
  readonly #buffers: BufferSpec[] = [];
  readonly #ops: Op[] = [];
  readonly #linears = new UniqueList<LinearSource>();
  readonly #vectors = new UniqueList<VectorSource>();
  /** Buffers of each tensor, by storage. */
  readonly #tensorBuffers = new Map<TensorId, Map<Storage, BufferId>>();
  readonly #requiredStorages: ReadonlyMap<TensorId, ReadonlySet<Storage>>;
  readonly #readers: readonly (readonly number[])[];
  #readyLayers = 0;
  /** Ops up to the hidden states. */
  #hiddenEnd = 0;
  /** Rows that each attention call of a model worker has sent. */
  readonly #sentQ = new Map<number, BufferId>();
  readonly #sentKv = new Map<number, BufferId>();

  constructor(graph: Graph, options: CompileOptions) {
    this.#graph = graph;
    this.#options = options;
    this.#readers = readersOf(graph);
    this.#requiredStorages = requiredStorages(graph, (segments) => this.#inputForm(segments));
  }

  /** The inputs of the graph arrive in buffers of their own. */
  begin(): void {
    for (const tensor of this.#graph.inputs) this.#push({ kind: 'waitRows', out: this.#allocate(tensor, 'plain') });
    for (const tensor of this.#graph.inputs) this.#convert(tensor);
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
        this.#linearLayer(node);
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
      case 'sendQ':
        this.#sendQ(node);
        return;
      case 'sendKV':
        this.#sendKV(node);
        return;
      case 'waitPartial':
        this.#waitPartial(node);
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
        this.#add(node, index);
        break;
      case 'softcap':
        this.#push({ kind: 'softcap', cap: node.cap, x: this.#updateInPlace(node.x, index, node.out) });
        break;
      default:
        assertNever(node);
    }
    if (node.out === this.#graph.hidden) this.#hiddenEnd = this.#ops.length;
    this.#convert(node.out);
  }

  finish(): Compiled {
    const { logits: rows, hidden: states, groups } = this.#graph;
    const inputs = this.#ops.flatMap((op) => (op.kind === 'waitRows' ? [op.out] : []));
    const outputs = this.#graph.outputs.map((tensor) => this.#read(tensor));
    for (const x of outputs) this.#push({ kind: 'rowsReady', x });
    const logits = rows === undefined ? undefined : this.#read(rows);
    const { kvType } = this.#options;
    const hidden = states === undefined ? undefined : { buffer: this.#read(states), end: this.#hiddenEnd };
    const program = { buffers: this.#buffers, ops: this.#ops, logits, hidden, kvType, groups };
    return { program, linears: this.#linears.values, vectors: this.#vectors.values, inputs, outputs };
  }

  /** The sum replaces the residual stream, or the other operand where the residual stream is read again. */
  #add(node: Node & { kind: 'add' }, index: number): void {
    const isReadAgain = this.#readers[node.left]?.at(-1) !== index;
    const [kept, replaced] = isReadAgain ? [node.left, node.right] : [node.right, node.left];
    this.#push({ kind: 'add', x: this.#read(kept), residual: this.#updateInPlace(replaced, index, node.out) });
  }

  #norm(node: Node & { kind: 'norm' }, index: number): void {
    const { style, add, eps } = node;
    const columns = this.#columns(node.out);
    const gain = this.#gain(node.gain, columns);
    const bias = node.bias === undefined ? undefined : this.#gain({ name: node.bias, offset: 0 }, columns);
    const x = this.#read(node.x);
    const residual = add === undefined ? undefined : this.#updateInPlace(add.residual, index, add.sum);
    this.#push({ kind: 'norm', style, x, residual, gain, bias, eps, out: this.#define(node.out, node.kind) });
  }

  #embed(node: Node & { kind: 'embed' }): void {
    const { weight, scale, positions: table, out } = node;
    const positions =
      table === undefined
        ? undefined
        : {
            table: this.#vector({ kind: 'positions', table, columns: weight.columns }),
            offset: table.offset,
            types: table.types?.rows ?? 1,
          };
    this.#push({ kind: 'embed', table: this.#linear([weight]), scale, positions, out: this.#define(out) });
  }

  /**
   * The buffer of a tensor that the node at `index` changes in place into another. No later node may read the old
   * tensor.
   */
  #updateInPlace(tensor: TensorId, index: number, into: TensorId): BufferId {
    if (this.#readers[tensor]?.at(-1) !== index)
      throw new Error(`Cannot compile the graph: a tensor that is changed in place is read again: id ${tensor}`);
    const buffer = this.#read(tensor);
    this.#tensorBuffers.set(into, new Map([['plain', buffer]]));
    return buffer;
  }

  #linearLayer(node: Node & { kind: 'linear' }): void {
    const form = this.#inputForm(node.segments);
    const parts = node.segments.map((segment) => ({ name: segment.bias, length: segment.rows }));
    const biased = parts.some((part) => part.name !== undefined);
    const bias = biased ? this.#vector({ kind: 'tensors', parts, offset: 0 }) : undefined;
    const x = this.#read(node.x, form);
    this.#push({ kind: 'linear', weight: this.#linear(node.segments), bias, x, out: this.#define(node.out) });
  }

  #attention(node: Node & { kind: 'attention' }): void {
    const { layer, heads, kvHeads, headDim, rope, eps, scale, window, softcap } = node;
    const q = this.#query(heads * headDim);
    this.#push({
      kind: 'qkv',
      layer,
      heads,
      kvHeads,
      headDim,
      ...this.#rotation(rope),
      qNorm: this.#headGain(node.qNorm, headDim),
      kNorm: this.#headGain(node.kNorm, headDim),
      eps,
      x: this.#single(node),
      out: q,
    });
    // waitLayer precedes layerReady: the pages to send may be those that the layer waits for.
    this.#push({ kind: 'waitLayer', layer: this.#readyLayers });
    this.#push({ kind: 'layerReady', layers: ++this.#readyLayers });
    const out = this.#define(node.out, node.kind);
    const slopes = node.alibi ? this.#vector({ kind: 'slopes', heads }) : undefined;
    const bidirectional = node.bidirectional === true ? ({ bidirectional: true } as const) : {};
    const scores = { scale, window, softcap, slopes, stats: undefined, ...bidirectional };
    this.#push({ kind: 'attention', layer, heads, kvHeads, headDim, ...scores, q, out });
  }

  #sendQ(node: Node & { kind: 'sendQ' }): void {
    const { kind, call, layer, heads, kvHeads, headDim, rope, qNorm, eps, scale, softcap } = node;
    const shape = { layer, heads, kvHeads, headDim, ...this.#rotation(rope), eps, scale, softcap };
    const slopes = node.alibi ? this.#vector({ kind: 'slopes', heads }) : undefined;
    const out = this.#query(heads * headDim);
    this.#push({ kind, call, ...shape, qNorm: this.#headGain(qNorm, headDim), slopes, x: this.#single(node), out });
    this.#sentQ.set(call, out);
  }

  #sendKV(node: Node & { kind: 'sendKV' }): void {
    const { kind, call, layer, heads, kvHeads, headDim, rope, kNorm, eps } = node;
    const shape = { layer, heads, kvHeads, headDim, ...this.#rotation(rope), eps };
    const out = this.#query(2 * kvHeads * headDim);
    this.#push({ kind, call, ...shape, kNorm: this.#headGain(kNorm, headDim), x: this.#single(node), out });
    this.#sentKv.set(call, out);
  }

  #waitPartial({ kind, call, layer, heads, kvHeads, headDim, out }: Node & { kind: 'waitPartial' }): void {
    const shape = { layer, heads, kvHeads, headDim };
    const [q, kv] = [this.#sentQ.get(call), this.#sentKv.get(call)];
    const sent = q === undefined || kv === undefined ? undefined : { q, kv };
    this.#push({ kind, call, ...shape, sent, out: this.#define(out, kind) });
  }

  #query(columns: number): BufferId {
    return this.#buffers.push({ rows: 'token', columns, kind: 'query' }) - 1;
  }

  #rotation(spec: RopeSpec | undefined): { readonly rope: VectorId | undefined; readonly rotaryDim: number } {
    return spec === undefined
      ? { rope: undefined, rotaryDim: 0 }
      : { rope: this.#vector({ kind: 'rope', spec }), rotaryDim: spec.rotaryDim };
  }

  #headGain(gain: GainRef | undefined, headDim: number): VectorId | undefined {
    return gain === undefined ? undefined : this.#gain(gain, headDim);
  }

  /** Adds conversions to the storages that readers require and the producing op did not write. */
  #convert(tensor: TensorId): void {
    for (const storage of this.#requiredStorages.get(tensor) ?? []) {
      if (this.#tensorBuffers.get(tensor)?.has(storage)) continue;
      this.#push({ kind: 'convert', x: this.#read(tensor), out: this.#allocate(tensor, storage) });
    }
  }

  /**
   * The output buffer of the producing op: the one storage that all readers require if the op can write it, else
   * float32.
   */
  #define(tensor: TensorId, kind?: Node['kind']): BufferId {
    const required = [...(this.#requiredStorages.get(tensor) ?? [])];
    const only = required.length === 1 && kind !== undefined && roundsOutput.has(kind) ? required[0] : undefined;
    return this.#allocate(tensor, only ?? 'plain');
  }

  #allocate(tensor: TensorId, storage: Storage): BufferId {
    const { rows, columns } = tensorSpec(this.#graph, tensor);
    const spec: BufferSpec =
      storage === 'plain' ? { rows, columns, kind: 'f32' } : { rows, columns, kind: 'input', form: storage };
    const buffer = this.#buffers.push(spec) - 1;
    const buffers = this.#tensorBuffers.get(tensor) ?? new Map<Storage, BufferId>();
    this.#tensorBuffers.set(tensor, buffers.set(storage, buffer));
    return buffer;
  }

  #read(tensor: TensorId, storage: Storage = 'plain'): BufferId {
    const buffer = this.#tensorBuffers.get(tensor)?.get(storage);
    if (buffer === undefined)
      throw new Error(`Cannot compile the graph: no buffer holds a tensor: id ${tensor}, ${storage}`);
    return buffer;
  }

  #single(node: Node & { kind: 'glu' | 'attention' | 'sendQ' | 'sendKV' }): BufferId {
    const [x, ...more] = node.x;
    if (x === undefined || more.length > 0) {
      throw new Error(
        `Cannot compile the graph: ${node.kind} reads ${node.x.length} tensors: its linears do not share their input`,
      );
    }
    return this.#read(x);
  }

  #linear(segments: readonly WeightRef[]): LinearId {
    const source = {
      columns: segments[0]?.columns ?? 0,
      segments: segments.map(({ name, rows }) => ({ name, rows })),
      inputs: this.#inputForm(segments),
    };
    return this.#linears.id(source);
  }

  #inputForm(segments: readonly WeightRef[]): InputForm {
    return this.#options.inputForm(segments.map((segment) => segment.name));
  }

  #vector(source: VectorSource): VectorId {
    return this.#vectors.id(source);
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

/** The storages that readers of each tensor require. */
function requiredStorages(
  graph: Graph,
  inputForm: (segments: readonly WeightRef[]) => InputForm,
): ReadonlyMap<TensorId, ReadonlySet<Storage>> {
  const storages = new Map<TensorId, Set<Storage>>();
  for (const node of graph.nodes) {
    const storage = node.kind === 'linear' ? inputForm(node.segments) : 'plain';
    for (const x of nodeInputs(node)) storages.set(x, (storages.get(x) ?? new Set()).add(storage));
  }
  const read = graph.hidden === undefined ? graph.outputs : [...graph.outputs, graph.hidden];
  for (const x of read) storages.set(x, (storages.get(x) ?? new Set()).add('plain'));
  return storages;
}

/** A list without duplicates; an id is an index. */
class UniqueList<T> {
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
