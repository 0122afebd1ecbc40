// A GGUF model, single or split, as ModelFiles: stored bytes under Hugging Face names and in Hugging Face row order.
import type { ModelConfig } from '../../util/model-config.ts';
import { ModelFileError } from '../errors.ts';
import type { RandomAccessFile } from '../random-access-file.ts';
import { type PairedRows, readPairedRows } from '../stored-order.ts';
import { readRange, TensorDirectory } from '../tensor-directory.ts';
import {
  type GenerationDefaults,
  type ModelFiles,
  rowBytes,
  type TensorInfo,
  type TokenizerSource,
  type UnsupportedTensor,
} from '../types.ts';
import { ggufConfig, ggufGenerationDefaults } from './gguf-config.ts';
import type { GgufTensor } from './gguf-header.ts';
import type { GgufMetadata } from './gguf-metadata.ts';
import { canonicalName, reorderedHeads } from './gguf-names.ts';
import { type GgufPart, ggufModelId, openGgufParts } from './gguf-parts.ts';
import { ggufTokenizer } from './gguf-tokenizer.ts';

export class GgufFiles implements ModelFiles {
  readonly path: string;
  readonly kind = 'gguf';
  readonly id: string;
  readonly #files: ReadonlyMap<string, RandomAccessFile>;
  readonly #metadata: GgufMetadata;
  readonly #architecture: string;
  readonly #directory = new TensorDirectory();
  /** Hugging Face name to stored name. */
  readonly #storedNames = new Map<string, string>();
  #config: ModelConfig | undefined;

  constructor(path: string) {
    this.path = path;
    this.id = ggufModelId(path);
    const parts = openGgufParts(path);
    this.#files = new Map(parts.map((part) => [part.path, part.file]));
    this.#metadata = parts[0].header.metadata;
    try {
      this.#architecture = this.#metadata.string('general.architecture') ?? '';
      for (const part of parts) for (const tensor of part.header.tensors) this.#addTensor(part, tensor);
    } catch (error) {
      this.close();
      throw error;
    }
  }

  get config(): ModelConfig {
    this.#config ??= ggufConfig(this.#metadata, this.#architecture, this);
    return this.#config;
  }

  get tokenizer(): TokenizerSource | undefined {
    const data = ggufTokenizer(this.#metadata);
    return data === undefined ? undefined : { kind: 'gguf', data };
  }

  get generationDefaults(): GenerationDefaults {
    return ggufGenerationDefaults(this.#metadata);
  }

  tensor(name: string): TensorInfo | undefined {
    return this.#directory.tensor(name);
  }

  tensors(): Iterable<TensorInfo> {
    return this.#directory.tensors();
  }

  unsupportedTensors(): Iterable<UnsupportedTensor> {
    return this.#directory.unsupportedTensors();
  }

  read(info: TensorInfo, byteStart: number, byteLength: number, into?: Uint8Array): Uint8Array {
    const bytes = readRange(info, byteStart, byteLength, into);
    const paired = this.#pairedRows(info);
    const file = this.#files.get(info.file);
    if (file === undefined)
      throw new ModelFileError({ file: info.file, tensor: info.name, reason: 'the tensor belongs to another model' });
    if (paired === undefined) file.readInto(info.offset + byteStart, bytes);
    else readPairedRows(file, info.offset, paired, byteStart, bytes);
    return bytes;
  }

  close(): void {
    for (const file of this.#files.values()) file.close();
  }

  #addTensor(part: GgufPart, tensor: GgufTensor): void {
    const name = canonicalName(this.#architecture, tensor.name);
    const { type, shape, offset, byteLength, typeName } = tensor;
    if (type === undefined) this.#directory.addUnsupported({ name, typeName, shape }, part.path, offset);
    else this.#directory.add({ name, type, shape, byteLength, file: part.path, offset });
    this.#storedNames.set(name, tensor.name);
  }

  #pairedRows(info: TensorInfo): PairedRows | undefined {
    const reordered = reorderedHeads(this.#architecture, this.#storedNames.get(info.name) ?? info.name);
    if (reordered === undefined) return undefined;
    const heads = reordered === 'query' ? this.config.heads : this.config.kvHeads;
    const rows = info.shape[0] ?? 0;
    const headRows = rows / heads;
    const fail = (reason: string): never => {
      throw new ModelFileError({ file: info.file, tensor: info.name, offset: info.offset, reason });
    };
    if (!Number.isSafeInteger(headRows) || headRows % 2 !== 0) fail(`its ${rows} rows are not pairs in ${heads} heads`);
    if (info.shape.length > 1) return { headRows, rowBytes: rowBytes(info) };
    if (info.type !== 'f32' && info.type !== 'f16' && info.type !== 'bf16')
      fail(`a bias in ${info.type} cannot be reordered`);
    return { headRows, rowBytes: info.byteLength / rows };
  }
}
