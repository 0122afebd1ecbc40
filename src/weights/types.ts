// Tensors and the interface of an opened model, common to GGUF files and Hugging Face directories.
import type { ModelConfig } from '../util/model-config.ts';
import { type QuantisedType, quantisedLayouts } from '../util/quantised-blocks.ts';
import { ModelFileError } from './errors.ts';

export type TensorType = 'f32' | 'f16' | 'bf16' | QuantisedType;

export interface TensorLayout {
  /** Elements of one stored block; a row is a whole number of blocks. */
  readonly blockElements: number;
  readonly blockBytes: number;
}

/**
 * Stored layout of each type. A new quantisation is a row here, a row and a decoder in util/quantised-blocks.ts, and a
 * row in `ggmlTypes`.
 */
export const tensorLayouts: Readonly<Record<TensorType, TensorLayout>> = {
  f32: { blockElements: 1, blockBytes: 4 },
  f16: { blockElements: 1, blockBytes: 2 },
  bf16: { blockElements: 1, blockBytes: 2 },
  ...quantisedLayouts,
};

export interface TensorInfo {
  /** Hugging Face name, also for tensors of a GGUF file. */
  readonly name: string;
  readonly type: TensorType;
  /** Row-major, outermost first: (out, in) for a linear layer. */
  readonly shape: readonly number[];
  readonly byteLength: number;
  /** Path of the file that holds the tensor. */
  readonly file: string;
  /** Byte offset of the first stored row in that file. */
  readonly offset: number;
}

/** A tensor of a stored type that cannot be read. Requesting it by name is an error. */
export interface UnsupportedTensor {
  readonly name: string;
  readonly typeName: string;
  readonly shape: readonly number[];
}

export interface GenerationDefaults {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly minP?: number;
  readonly repetitionPenalty?: number;
  readonly maxNewTokens?: number;
  /** All token ids that end a generation. */
  readonly eosIds: readonly number[];
}

/** Vocabulary and tokenizer settings as a GGUF file stores them. */
export interface GgufTokenizerData {
  /** `tokenizer.ggml.model`: gpt2 (byte-level BPE), llama (SentencePiece style), ... */
  readonly model: string;
  /** Name of the pre-tokenizer. */
  readonly pre?: string;
  readonly tokens: readonly string[];
  readonly tokenTypes?: Int32Array;
  readonly scores?: Float32Array;
  /** Pairs of pieces separated by a space, best first. */
  readonly merges?: readonly string[];
  readonly bosId?: number;
  readonly eosId?: number;
  readonly eotId?: number;
  readonly eomId?: number;
  readonly unkId?: number;
  readonly padId?: number;
  readonly sepId?: number;
  readonly clsId?: number;
  readonly addBos?: boolean;
  readonly addEos?: boolean;
  readonly addSpacePrefix?: boolean;
  /** Special tokens absorb the white space after them: Phi-3's tokenizer does, and no key states it. */
  readonly stripAfterSpecial?: boolean;
  readonly chatTemplate?: string;
  /** The template of chats with tools, if it is another. */
  readonly toolTemplate?: string;
}

export type TokenizerSource =
  | { readonly kind: 'gguf'; readonly data: GgufTokenizerData }
  | {
      readonly kind: 'huggingface';
      readonly tokenizerJson: string;
      readonly tokenizerConfig?: unknown;
      readonly specialTokensMap?: unknown;
      readonly chatTemplate?: string;
      /** The template of chats with tools, if it is another. */
      readonly toolTemplate?: string;
    };

/** An opened model. Opening reads only headers; every getter and method may throw ModelFileError. */
export interface ModelFiles {
  readonly path: string;
  readonly kind: 'gguf' | 'safetensors';
  /** File name without extension, or folder name. */
  readonly id: string;
  /** @throws ModelFileError when the tensor exists in an unsupported type */
  tensor(name: string): TensorInfo | undefined;
  /** Tensors of supported types, in file order. */
  tensors(): Iterable<TensorInfo>;
  unsupportedTensors(): Iterable<UnsupportedTensor>;
  /**
   * Stored bytes [byteStart, byteStart + byteLength) of a tensor, rows in Hugging Face order.
   * Fills the start of `into` if given, without another allocation of that size, and returns exactly the bytes read.
   * @throws RangeError when the range is not inside the tensor
   */
  read(info: TensorInfo, byteStart: number, byteLength: number, into?: Uint8Array): Uint8Array;
  /** Parsed on first use. */
  readonly config: ModelConfig;
  /** undefined: the model is served for token ids only. Large, so it is built on each use and not kept. */
  readonly tokenizer: TokenizerSource | undefined;
  readonly generationDefaults: GenerationDefaults;
  close(): void;
}

/** Bytes of one row, the last dimension. */
export function rowBytes(info: TensorInfo): number {
  const { blockElements, blockBytes } = tensorLayouts[info.type];
  return ((info.shape.at(-1) ?? 1) / blockElements) * blockBytes;
}

export function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** Stored bytes of a shape, or the reason why it has none: an overflow, or rows that are not whole blocks. */
export function storedBytes(type: TensorType, shape: readonly number[]): number | string {
  const { blockElements, blockBytes } = tensorLayouts[type];
  const columns = shape.at(-1) ?? 1;
  if (columns % blockElements !== 0)
    return `rows of ${columns} elements are not whole blocks of ${blockElements} (${type})`;
  // A size of 0 must not hide an overflow of the other sizes.
  const product = shape.reduce((bytes, size) => bytes * Math.max(size, 1), blockBytes);
  if (!Number.isSafeInteger(product)) return `shape [${shape.join(', ')}] overflows`;
  return (elementCount(shape) / blockElements) * blockBytes;
}

/**
 * The tensor of this name and shape.
 * @throws ModelFileError that names file, tensor and offset when it is missing or has another shape
 */
export function expectTensor(files: ModelFiles, name: string, shape: readonly number[]): TensorInfo {
  const info = files.tensor(name);
  if (info === undefined) {
    throw new ModelFileError({
      file: files.path,
      tensor: name,
      reason: `the tensor is missing: shape [${shape.join(', ')}] expected`,
    });
  }
  if (info.shape.length !== shape.length || info.shape.some((size, axis) => size !== shape[axis])) {
    throw new ModelFileError({
      file: info.file,
      tensor: name,
      offset: info.offset,
      reason: `shape [${info.shape.join(', ')}] where the configuration requires [${shape.join(', ')}]`,
    });
  }
  return info;
}
