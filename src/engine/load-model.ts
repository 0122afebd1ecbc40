// Loading: a model's files become packed weights and a compiled program, every tensor checked before any memory is
// taken.
import { type Compiled, compile, type LinearSource } from '../graph/compile.ts';
import { fuse } from '../graph/fuse.ts';
import type { InputForm, LayerRef, Program } from '../graph/program.ts';
import { modelWorkerGraph } from '../graph/slice.ts';
import { withSparseLayers } from '../graph/sparse-layers.ts';
import type { Backend, LinearHandle, VectorHandle } from '../kernel/backend.ts';
import { buildGraph } from '../models/registry.ts';
import { type KvType, kvTokenBytes, q8Dims } from '../util/kv-type.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { type LayerGroup, pageTokens } from '../util/step.ts';
import { ModelFileError, reasonOf } from '../weights/errors.ts';
import { openModel } from '../weights/open-model.ts';
import { expectTensor, type ModelFiles, type TensorInfo, type TensorType } from '../weights/types.ts';
import {
  chooseInputs,
  type InputChoice,
  kvTypeOf,
  layerInputs,
  type ModelForms,
  matrixTypes,
  packedType,
  type WeightsForm,
} from './forms.ts';
import { Packer, type Segment, vectorValues } from './pack.ts';

/** Where attention is computed: over pages of the instance, or at attention workers. */
export type AttentionPlace = 'pages' | 'workers';

export interface LoadOptions {
  /** A path, which is opened and closed, or files that stay open. */
  readonly model: string | ModelFiles;
  readonly backend: Backend;
  /** `native` by default. */
  readonly weights?: WeightsForm;
  /** `bf16` by default. */
  readonly inputs?: InputChoice;
  /** Type of K and V in pages; default: f32 beside f32 inputs, else bf16. */
  readonly kvType?: KvType | undefined;
  /** `workers`: the program leaves attention to attention workers. `pages` by default. */
  readonly attention?: AttentionPlace;
  /** Maximum tokens of a sequence; at most the model's own maximum, which is the default. */
  readonly context?: number;
  /**
   * The same files in the same forms, loaded for another place of attention: equal linear layers are not packed again.
   * It must stay loaded as long as this model.
   */
  readonly sharedWith?: LoadedModel | undefined;
  /** (layers): those of which sequences may keep only some tokens; they become a layer group. */
  readonly sparseLayers?: readonly boolean[] | undefined;
}

/** Shape of the KV memory that a model requires. */
export interface KvShape {
  readonly type: KvType;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Layer groups, numbered as in the program: an rBlock of a group is a page for each of its layers. */
  readonly groups: readonly LayerGroup[];
  /** Bytes of a page: `pageTokens` tokens of one layer's K and V. */
  readonly pageBytes: number;
}

/** Packed weights and program, as plain data over handles: valid in every thread of the process until freed. */
export interface LoadedModel {
  readonly id: string;
  readonly config: ModelConfig;
  readonly weights: WeightsForm;
  readonly inputs: InputForm;
  readonly context: number;
  readonly compiled: Compiled;
  readonly linears: readonly LinearHandle[];
  readonly vectors: readonly VectorHandle[];
  readonly kv: KvShape;
  /** Memory of packed weights and vectors. */
  readonly weightsBytes: number;
  /** Stored types of the linear layers, most bytes first. */
  readonly packedTypes: readonly TensorType[];
}

/** @throws ModelFileError that names the file, and the tensor and offset at fault */
export function loadModel(options: LoadOptions): LoadedModel {
  if (typeof options.model !== 'string') return loadFrom(options.model, options);
  const files = openModel(options.model);
  try {
    return loadFrom(files, options);
  } finally {
    files.close();
  }
}

/** Like `loadModel`, with the file named in every error about its content. */
function loadFrom(files: ModelFiles, options: LoadOptions): LoadedModel {
  try {
    return load(files, options);
  } catch (error) {
    const isRefusal = error instanceof Error && error.name === 'Error';
    throw isRefusal ? new ModelFileError({ file: files.path, reason: reasonOf(error) }) : error;
  }
}

function load(files: ModelFiles, options: LoadOptions): LoadedModel {
  const { backend, weights = 'native' } = options;
  const { config } = files;
  if (config.encoder !== undefined && options.attention === 'workers')
    throw new Error(
      `Cannot load the model: ${config.architecture} is an encoder, which attention workers cannot serve`,
    );
  const inputs = chooseInputs(options.inputs ?? 'bf16', backend.isa, matrixTypes(files, weights)).form;
  const forms = { weights, inputs, kvType: kvTypeOf({ inputs, kvType: options.kvType }) };
  const context = contextOf(config, options.context);
  const { compiled: plain, typeOf } = compileModel(files, context, forms, options.attention);
  const compiled = withLayers(plain, options.sparseLayers);
  const kv = kvShape(config, forms.kvType, compiled);
  checkTiedHead(files);
  const segments = compiled.linears.map((source) => checkedSegments(files, source, typeOf));
  const vectorData = compiled.vectors.map((source) => vectorValues(files, source, context));
  const linears = packAll(files, backend, compiled.linears, segments, linearsOf(options.sharedWith));
  const vectors = vectorData.map((values) => backend.createVector(values));
  const linearBytes = linears.reduce((sum, linear) => sum + backend.linearBytes(linear), 0);
  const vectorBytes = vectorData.reduce((sum, values) => sum + values.byteLength, 0);
  return {
    id: files.id,
    config,
    weights,
    inputs,
    context,
    compiled,
    linears,
    vectors,
    kv,
    weightsBytes: linearBytes + vectorBytes,
    packedTypes: typesBySize(segments.flat()),
  };
}

/** @param sparse undefined: all layers keep all tokens */
function withLayers<T extends { readonly program: Program }>(compiled: T, sparse: readonly boolean[] | undefined): T {
  return sparse === undefined
    ? compiled
    : { ...compiled, program: withSparseLayers(compiled.program, (layer) => sparse[layer]) };
}

const compareBytes = 1 << 22;

/** @throws ModelFileError if the files hold a head of their own that the configuration would leave out */
function checkTiedHead(files: ModelFiles): void {
  if (!files.config.tieEmbeddings) return;
  const head = files.tensor('lm_head.weight') ?? files.tensor('embed_out.weight');
  const tables = [...files.tensors()].filter(({ name }) => embeddingTable.test(name));
  const [table] = tables;
  if (head === undefined || table === undefined) return;
  let isEqual = head.type === table.type && head.byteLength === table.byteLength;
  for (let at = 0; isEqual && at < head.byteLength; at += compareBytes) {
    const length = Math.min(compareBytes, head.byteLength - at);
    isEqual = Buffer.compare(files.read(head, at, length), files.read(table, at, length)) === 0;
  }
  if (isEqual) return;
  const reason = `it differs from ${table.name}, but tie_word_embeddings is true: remove the tensor, or set the key to false`;
  throw new ModelFileError({ file: head.file, tensor: head.name, reason });
}

const embeddingTable = /\.(embed_tokens|embed_in|wte|word_embeddings)\.weight$/;

function compileModel(
  files: ModelFiles,
  context: number,
  { weights, inputs, kvType }: ModelForms,
  attention: AttentionPlace = 'pages',
) {
  const model = buildGraph(files.config, context);
  const graph = fuse(attention === 'workers' ? modelWorkerGraph(model) : model);
  const typeOf = (info: TensorInfo): TensorType => packedType(info, weights, graph.vocabularyNames.has(info.name));
  const typeOfName = (name: string): TensorType => {
    const info = files.tensor(name);
    return info === undefined ? 'f32' : typeOf(info);
  };
  const compiled = compile(graph, {
    inputForm: (names) => layerInputs(inputs, names.map(typeOfName)),
    kvType: kvTypeOf({ inputs, kvType }),
    keepsHidden: true,
  });
  return { compiled, typeOf };
}

/**
 * For a model that is not loaded: its KV memory once loaded, and its layers in the order of computation. Reads no
 * weights.
 */
export function kvShapeOf(
  files: ModelFiles,
  options: Pick<LoadOptions, 'weights' | 'inputs' | 'kvType' | 'context' | 'sparseLayers'>,
): { readonly kv: KvShape; readonly layers: readonly LayerRef[] } {
  const { weights = 'native', inputs = 'bf16', context, sparseLayers } = options;
  // The forms of layers do not change the shape.
  const form = inputs === 'auto' ? 'bf16' : inputs;
  const forms = { weights, inputs: form, kvType: kvTypeOf({ inputs, kvType: options.kvType }) };
  const { compiled: plain } = compileModel(files, contextOf(files.config, context), forms);
  const compiled = withLayers(plain, sparseLayers);
  return { kv: kvShape(files.config, forms.kvType, compiled), layers: layersOf(compiled.program) };
}

/** In the order of computation: the group of each layer, and its index in the group. */
export function layersOf({ ops }: Program): readonly LayerRef[] {
  return ops.flatMap((op) => (op.kind === 'qkv' || op.kind === 'sendQ' ? [op.layer] : []));
}

/** Packs every layer that is not shared; frees packed layers when a read fails. @param shared handles by source */
function packAll(
  files: ModelFiles,
  backend: Backend,
  source: readonly LinearSource[],
  segments: readonly (readonly Segment[])[],
  shared: ReadonlyMap<string, LinearHandle>,
): readonly LinearHandle[] {
  const packer = new Packer(files, backend);
  const packed: LinearHandle[] = [];
  const pack = (linear: LinearSource, index: number): LinearHandle => {
    const handle = packer.linear(linear, segments[index]);
    packed.push(handle);
    return handle;
  };
  try {
    return source.map((linear, index) => shared.get(JSON.stringify(linear)) ?? pack(linear, index));
  } catch (error) {
    for (const linear of packed) backend.freeLinear(linear);
    throw error;
  }
}

/** Handles by source. */
function linearsOf(model: LoadedModel | undefined): ReadonlyMap<string, LinearHandle> {
  return new Map(model?.compiled.linears.map((source, i) => [JSON.stringify(source), model.linears[i]]));
}

/** Frees the model's weights, shared ones too; no engine may use them afterwards. */
export function freeModel(model: LoadedModel, backend: Backend): void {
  for (const linear of model.linears) backend.freeLinear(linear);
  for (const vector of model.vectors) backend.freeVector(vector);
}

function contextOf(config: ModelConfig, requested: number | undefined): number {
  if (requested !== undefined && requested > config.maxPositions) {
    throw new Error(
      `Cannot load the model: context ${requested} exceeds its maximum positions: ${config.maxPositions}`,
    );
  }
  return requested ?? config.maxPositions;
}

function checkedSegments(
  files: ModelFiles,
  source: LinearSource,
  typeOf: (info: TensorInfo) => TensorType,
): readonly Segment[] {
  return source.segments.map(({ name, rows }) => {
    const info = expectTensor(files, name, [rows, source.columns]);
    return { info, type: typeOf(info) };
  });
}

function typesBySize(segments: readonly Segment[]): readonly TensorType[] {
  const elements = new Map<TensorType, number>();
  for (const { info, type } of segments) {
    elements.set(type, (elements.get(type) ?? 0) + info.shape[0] * info.shape[1]);
  }
  return [...elements].sort((a, b) => b[1] - a[1]).map(([type]) => type);
}

/** @throws Error if pages of this type cannot hold the model's heads */
function kvShape(config: ModelConfig, type: KvType, compiled: Compiled): KvShape {
  const { kvHeads, headDim } = config;
  if (type === 'q8' && headDim % q8Dims !== 0)
    throw new Error(
      `a head has ${headDim} dimensions: --kv-type q8 needs a multiple of ${q8Dims}, which share a scale`,
    );
  return {
    type,
    kvHeads,
    headDim,
    groups: compiled.program.groups,
    pageBytes: kvTokenBytes(config, type) * pageTokens,
  };
}
