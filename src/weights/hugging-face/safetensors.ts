// A Hugging Face directory as an opened model: safetensors files, config.json and tokenizer files.
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
import { huggingFaceTokenizer } from './hf-tokenizer.ts';
import { readOptionalJson, validate } from './json-file.ts';
import { readSafetensorsHeader, type SafetensorsEntry } from './safetensors-header.ts';

const indexBytesMax = 1 << 27;
const shardsMax = 4096;

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

export class HuggingFaceFiles implements ModelFiles {
  readonly path: string;
  readonly kind = 'safetensors';
  readonly id: string;
  readonly #files = new Map<string, RandomAccessFile>();
  readonly #directory = new TensorDirectory();
  readonly #architecture: string;
  /** The transposed matrix that was read last: rows come in chunks, and turning needs all of it. */
  #turned: { readonly info: TensorInfo; readonly bytes: Uint8Array } | undefined;
  #config: ModelConfig | undefined;

  constructor(path: string) {
    this.path = path;
    this.id = basename(resolve(path));
    this.#architecture = huggingFaceArchitecture(this.#configPath);
    try {
      this.#openShards();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  get config(): ModelConfig {
    if (this.#config === undefined) {
      this.#config = huggingFaceConfig(this.#configPath, readSettings(this.#configPath));
    }
    return this.#config;
  }

  get generationDefaults(): GenerationDefaults {
    const path = join(this.path, 'generation_config.json');
    return huggingFaceDefaults(path, readOptionalJson(path, configBytesMax), this.config);
  }

  get tokenizer(): TokenizerSource | undefined {
    return huggingFaceTokenizer(this.path);
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
      throw new ModelFileError({ file: info.file, tensor: info.name, reason: 'the tensor is not of this model' });
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
    this.#turned = undefined;
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
      // A shard is a plain name: an index must not reach outside its directory.
      if (shard !== basename(shard) || shard === '.' || shard === '..')
        throw new ModelFileError({ file: indexPath, key: shard, reason: 'not a plain file name' });
      this.#openShard(join(this.path, shard));
    }
    const held = new Map(this.#directory.placements());
    for (const [tensor, shard] of Object.entries(index.weight_map)) {
      const file = join(this.path, shard);
      if (held.get(checkpointName(this.#architecture, tensor)) !== file)
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
    const turned = storedOrder(this.#architecture, name, stored) === 'transposed';
    const shape = turned ? [...stored].reverse() : stored;
    if (type === undefined) this.#directory.addUnsupported({ name, typeName: dtype, shape }, path, offset);
    else this.#directory.add({ name, type, shape, byteLength, file: path, offset });
  }

  #transposed(file: RandomAccessFile, info: TensorInfo): Uint8Array {
    if (this.#turned?.info !== info) this.#turned = { info, bytes: readTransposed(file, info) };
    return this.#turned.bytes;
  }

  get #configPath(): string {
    return join(this.path, 'config.json');
  }
}
