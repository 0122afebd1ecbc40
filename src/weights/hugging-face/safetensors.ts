// A Hugging Face directory as ModelFiles: safetensors files, config.json and tokenizer files.
import { existsSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { z } from 'zod';
import type { ModelConfig } from '../../util/model-config.ts';
import { ModelFileError } from '../errors.ts';
import { RandomAccessFile } from '../random-access-file.ts';
import { readHeadWise, readTransposed, storedOrder } from '../stored-order.ts';
import { readRange, TensorDirectory } from '../tensor-directory.ts';
import type { GenerationDefaults, ModelFiles, TensorInfo, TokenizerSource, UnsupportedTensor } from '../types.ts';
import {
  configBytesMax,
  huggingFaceArchitecture,
  huggingFaceConfig,
  huggingFaceDefaults,
  readSettings,
} from './hf-config.ts';
import { checkpointName } from './hf-names.ts';
import { statedPooling } from './hf-pooling.ts';
import { readOptionalJson, readOptionalText, validate } from './json-file.ts';
import { readSafetensorsHeader, type SafetensorsEntry } from './safetensors-header.ts';

const indexBytesMax = 1 << 27;
const shardsMax = 4096;
const tokenizerBytesMax = 1 << 28;
const tokenizerConfigBytesMax = 1 << 26;
const templateBytesMax = 1 << 24;

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });
const templateSchema = z.object({
  chat_template: z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]).nullish(),
});

export class HuggingFaceFiles implements ModelFiles {
  readonly path: string;
  readonly kind = 'safetensors';
  readonly id: string;
  readonly #files = new Map<string, RandomAccessFile>();
  readonly #directory = new TensorDirectory();
  readonly #architecture: string;
  /** The transposed matrix read last: rows are read in chunks, and transposing needs the whole matrix. */
  #lastTransposed: { readonly info: TensorInfo; readonly bytes: Uint8Array } | undefined;
  #config: ModelConfig | undefined;

  /** @param withTensors false: the directory needs no weights, and has no tensors */
  constructor(path: string, withTensors = true) {
    this.path = path;
    this.id = basename(resolve(path));
    this.#architecture = huggingFaceArchitecture(this.#configPath);
    try {
      if (withTensors) this.#openShards();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  get config(): ModelConfig {
    if (this.#config === undefined) {
      const config = huggingFaceConfig(this.#configPath, readSettings(this.#configPath));
      const pooling = statedPooling(this.path);
      this.#config = pooling === undefined ? config : { ...config, embedding: { ...config.embedding, pooling } };
    }
    return this.#config;
  }

  get generationDefaults(): GenerationDefaults {
    const path = join(this.path, 'generation_config.json');
    return huggingFaceDefaults(path, readOptionalJson(path, configBytesMax), this.config);
  }

  get tokenizer(): TokenizerSource | undefined {
    return tokenizerOf(this.path);
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
    const file = this.#files.get(info.file);
    if (file === undefined)
      throw new ModelFileError({ file: info.file, tensor: info.name, reason: 'the tensor belongs to another model' });
    switch (storedOrder(this.#architecture, info.name, info.shape)) {
      case 'transposed':
        bytes.set(this.#transposed(file, info).subarray(byteStart, byteStart + byteLength));
        break;
      case 'head-wise':
        readHeadWise(file, info, this.config.heads, byteStart, bytes);
        break;
      default:
        file.readInto(info.offset + byteStart, bytes);
    }
    return bytes;
  }

  close(): void {
    this.#lastTransposed = undefined;
    for (const file of this.#files.values()) file.close();
  }

  #openShards(): void {
    const indexPath = join(this.path, 'model.safetensors.index.json');
    const single = join(this.path, 'model.safetensors');
    if (existsSync(indexPath) && !existsSync(single)) this.#openIndexed(indexPath);
    else this.#openShard(single);
  }

  #openIndexed(indexPath: string): void {
    const index = validate(indexPath, indexSchema, readOptionalJson(indexPath, indexBytesMax));
    const shards = new Set(Object.values(index.weight_map));
    if (shards.size > shardsMax)
      throw new ModelFileError({ file: indexPath, reason: `${shards.size} files, more than the ${shardsMax} allowed` });
    for (const shard of shards) {
      // The index must not reach outside its directory, so a shard must be a plain file name.
      if (shard !== basename(shard) || shard === '.' || shard === '..')
        throw new ModelFileError({ file: indexPath, key: shard, reason: 'not a plain file name' });
      this.#openShard(join(this.path, shard));
    }
    const fileOfTensor = new Map(this.#directory.placements());
    for (const [tensor, shard] of Object.entries(index.weight_map)) {
      const file = join(this.path, shard);
      if (fileOfTensor.get(checkpointName(this.#architecture, tensor)) !== file)
        throw new ModelFileError({
          file,
          tensor,
          reason: `the tensor is not in the file that ${basename(indexPath)} names`,
        });
    }
  }

  #openShard(path: string): void {
    const file = new RandomAccessFile(path);
    this.#files.set(path, file);
    for (const entry of readSafetensorsHeader(file)) this.#add(path, entry);
  }

  #add(path: string, { name: storedName, dtype, type, shape: stored, byteLength, offset }: SafetensorsEntry): void {
    const name = checkpointName(this.#architecture, storedName);
    const isTransposed = storedOrder(this.#architecture, name, stored) === 'transposed';
    const shape = isTransposed ? [...stored].reverse() : stored;
    if (type === undefined) this.#directory.addUnsupported({ name, typeName: dtype, shape }, path, offset);
    else this.#directory.add({ name, type, shape, byteLength, file: path, offset });
  }

  #transposed(file: RandomAccessFile, info: TensorInfo): Uint8Array {
    if (this.#lastTransposed?.info !== info) this.#lastTransposed = { info, bytes: readTransposed(file, info) };
    return this.#lastTransposed.bytes;
  }

  get #configPath(): string {
    return join(this.path, 'config.json');
  }
}

/** undefined when the directory has no tokenizer.json. */
function tokenizerOf(path: string): TokenizerSource | undefined {
  const tokenizerJson = readOptionalText(join(path, 'tokenizer.json'), tokenizerBytesMax);
  if (tokenizerJson === undefined) return undefined;
  const tokenizerConfig = readOptionalJson(join(path, 'tokenizer_config.json'), tokenizerConfigBytesMax);
  const specialTokensMap = readOptionalJson(join(path, 'special_tokens_map.json'), tokenizerConfigBytesMax);
  const templates = templatesOf(path, tokenizerConfig);
  const chatTemplate = readOptionalText(join(path, 'chat_template.jinja'), templateBytesMax) ?? templates.chatTemplate;
  const { toolTemplate } = templates;
  return {
    kind: 'huggingface',
    tokenizerJson,
    ...(tokenizerConfig === undefined ? {} : { tokenizerConfig }),
    ...(specialTokensMap === undefined ? {} : { specialTokensMap }),
    ...(chatTemplate === undefined ? {} : { chatTemplate }),
    ...(toolTemplate === undefined ? {} : { toolTemplate }),
  };
}

/** Some configurations hold several templates: the one named default is for chat, tool_use for chat with tools. */
function templatesOf(path: string, tokenizerConfig: unknown): { chatTemplate?: string; toolTemplate?: string } {
  if (tokenizerConfig === undefined) return {};
  const template = validate(join(path, 'tokenizer_config.json'), templateSchema, tokenizerConfig).chat_template;
  if (typeof template === 'string') return { chatTemplate: template };
  const named = (wanted: string) => template?.find(({ name }) => name === wanted)?.template;
  const [chatTemplate, toolTemplate] = [named('default'), named('tool_use')];
  return { ...(chatTemplate !== undefined && { chatTemplate }), ...(toolTemplate !== undefined && { toolTemplate }) };
}
