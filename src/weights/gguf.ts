// A GGUF file as an opened model: Hugging Face names and row order over its stored bytes.
import { basename } from 'node:path';
import type { ModelConfig } from '../util/model-config.ts';
import { ModelFileError } from './errors.ts';
import { ggufConfig, ggufGenerationDefaults } from './gguf-config.ts';
import { type GgufHeader, type GgufTensor, readGgufHeader } from './gguf-header.ts';
import { canonicalName, reorderedHeads } from './gguf-names.ts';
import { ggufTokenizer } from './gguf-tokenizer.ts';
import { type PairedRows, readPairedRows } from './paired-rows.ts';
import { RandomAccessFile } from './random-access-file.ts';
import { readRange, TensorDirectory } from './tensor-directory.ts';
import {
  type GenerationDefaults,
  type ModelFiles,
  rowBytes,
  type TensorInfo,
  type TokenizerSource,
  type UnsupportedTensor,
} from './types.ts';

export class GgufFiles implements ModelFiles {
  readonly path: string;
  readonly kind = 'gguf';
  readonly id: string;
  readonly #file: RandomAccessFile;
  readonly #header: GgufHeader;
  readonly #architecture: string;
  readonly #directory: TensorDirectory;
  /** Stored name of each tensor, by its Hugging Face name. */
  readonly #storedNames = new Map<string, string>();
  #config: ModelConfig | undefined;

  constructor(path: string) {
    this.path = path;
    this.id = basename(path).replace(/\.gguf$/i, '');
    this.#file = new RandomAccessFile(path);
    try {
      this.#header = readGgufHeader(this.#file);
      const { metadata } = this.#header;
      const parts = metadata.integer('split.count') ?? 1;
      if (parts > 1)
        metadata.fail(
          'split.count',
          `the model is split over ${parts} files, which is not supported: merge them first`,
        );
      this.#architecture = metadata.string('general.architecture') ?? '';
      this.#directory = new TensorDirectory();
      for (const tensor of this.#header.tensors) this.#addTensor(tensor);
    } catch (error) {
      this.#file.close();
      throw error;
    }
  }

  get config(): ModelConfig {
    this.#config ??= ggufConfig(this.#header.metadata, this.#architecture, this);
    return this.#config;
  }

  get tokenizer(): TokenizerSource | undefined {
    const data = ggufTokenizer(this.#header.metadata);
    return data === undefined ? undefined : { kind: 'gguf', data };
  }

  get generationDefaults(): GenerationDefaults {
    return ggufGenerationDefaults(this.#header.metadata);
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
    if (paired === undefined) this.#file.readInto(info.offset + byteStart, bytes);
    else readPairedRows(this.#file, info.offset, paired, byteStart, bytes);
    return bytes;
  }

  close(): void {
    this.#file.close();
  }

  #addTensor(tensor: GgufTensor): void {
    const name = canonicalName(this.#architecture, tensor.name);
    const { type, shape, offset, byteLength, typeName } = tensor;
    if (type === undefined) this.#directory.addUnsupported({ name, typeName, shape }, this.path, offset);
    else this.#directory.add({ name, type, shape, byteLength, file: this.path, offset });
    this.#storedNames.set(name, tensor.name);
  }

  #pairedRows(info: TensorInfo): PairedRows | undefined {
    const whose = reorderedHeads(this.#architecture, this.#storedNames.get(info.name) ?? info.name);
    if (whose === undefined) return undefined;
    const heads = whose === 'query' ? this.config.heads : this.config.kvHeads;
    const rows = info.shape[0] ?? 0;
    const headRows = rows / heads;
    const fail = (reason: string): never => {
      throw new ModelFileError({ file: this.path, tensor: info.name, offset: info.offset, reason });
    };
    if (!Number.isSafeInteger(headRows) || headRows % 2 !== 0) fail(`its ${rows} rows are not pairs in ${heads} heads`);
    if (info.shape.length > 1) return { headRows, rowBytes: rowBytes(info) };
    if (info.type !== 'f32' && info.type !== 'f16' && info.type !== 'bf16')
      fail(`a bias in ${info.type} cannot be reordered`);
    return { headRows, rowBytes: info.byteLength / rows };
  }
}
