// Mutations of model files: bytes, the structure of GGUF and JSON, and templates. All choices come from the given
// generator.
import { type GgufSpec, type GgufTensorSpec, type GgufValue, text, writeGguf } from '../weights/writers.ts';
import { ggufOddities, jsonNumbers, jsonOddities, sizes, templates } from './hostile-values.ts';
import type { MutationRandom } from './mutation-random.ts';
import type { FolderSeed, GgufSeed, Json, Seed } from './seeds.ts';

/** Names and contents of a model's files, and the path to open. */
export interface Mutant {
  readonly files: ReadonlyMap<string, Uint8Array | string>;
  readonly opens: string;
}

export function mutate(seed: Seed, prng: MutationRandom): Mutant {
  return seed.kind === 'gguf' ? mutateGguf(seed, prng) : mutateFolder(seed, prng);
}

/** Usually one: with several changes, the first error hides the others. */
function few(prng: MutationRandom): number {
  return prng.pick([1, 1, 1, 2, 3]);
}

/** The unchanged seed. */
export function unchanged(seed: Seed): Mutant {
  if (seed.kind === 'gguf') return { files: new Map([['model.gguf', writeGguf(seed.spec)]]), opens: 'model.gguf' };
  const json = Object.entries(seed.json).map(([name, value]) => [name, JSON.stringify(value)] as const);
  return { files: new Map<string, Uint8Array | string>([...json, ...Object.entries(seed.bytes)]), opens: '.' };
}

function mutateGguf(seed: GgufSeed, prng: MutationRandom): Mutant {
  let { spec } = seed;
  const structural = prng.below(4) > 0;
  if (structural) for (let n = few(prng); n > 0; n--) spec = mutateSpec(spec, prng);
  const bytes = writeGguf(spec);
  const mutated = structural && prng.below(5) > 0 ? bytes : mutateBytes(bytes, prng, headerBytesOf(spec, bytes));
  return { files: new Map([['model.gguf', mutated]]), opens: 'model.gguf' };
}

function headerBytesOf(spec: GgufSpec, bytes: Uint8Array): number {
  return Math.max(1, bytes.byteLength - spec.tensors.reduce((sum, tensor) => sum + tensor.bytes.byteLength, 0));
}

function mutateSpec(spec: GgufSpec, prng: MutationRandom): GgufSpec {
  const metadata = [...spec.metadata];
  const tensors = [...spec.tensors];
  const entry = prng.below(metadata.length);
  const [key, value] = metadata[entry] ?? ['none', text('')];
  const at = prng.below(tensors.length);
  const tensor = tensors[at];
  const size = prng.pick(sizes);
  switch (prng.below(12)) {
    case 0:
    case 1:
      metadata[entry] = [key, prng.pick(ggufOddities)];
      break;
    case 2:
    case 3:
      metadata[entry] = [key, mutateValue(value, prng)];
      break;
    case 4:
      metadata.splice(entry, 1);
      break;
    case 5:
      metadata.push([prng.below(2) === 0 ? key : prng.pick(extraKeys), prng.pick([value, ...ggufOddities])]);
      break;
    case 6:
      metadata[entry] = [prng.pick(metadata)[0], value];
      break;
    case 7:
      setTemplate(metadata, prng.pick(templates));
      break;
    case 8:
      return prng.below(2) === 0 ? { ...spec, tensorCount: BigInt(size) } : { ...spec, metadataCount: BigInt(size) };
    case 9:
      tensors.splice(at, 1);
      break;
    default:
      if (tensor !== undefined) tensors[at] = mutateTensor(tensor, prng.pick(tensors), prng);
  }
  return { ...spec, metadata, tensors };
}

const extraKeys = [
  ...['llama.rope.scaling.type', 'llama.rope.scaling.factor', 'llama.expert_count', 'llama.attention.sliding_window'],
  ...[
    'split.count',
    'general.alignment',
    'tokenizer.ggml.eot_token_id',
    'llama.rope.dimension_count',
    'qwen2.vocab_size',
  ],
  ...['tokenizer.ggml.precompiled_charsmap', 'llama.tensor_data_layout', 'general.file_type', '', 'a\nb', '__proto__'],
];

function setTemplate(metadata: (readonly [string, GgufValue])[], template: string): void {
  const at = metadata.findIndex(([key]) => key === 'tokenizer.chat_template');
  if (at >= 0) metadata.splice(at, 1);
  metadata.push(['tokenizer.chat_template', text(template)]);
}

function mutateTensor(tensor: GgufTensorSpec, other: GgufTensorSpec, prng: MutationRandom): GgufTensorSpec {
  const axis = prng.below(Math.max(1, tensor.shape.length));
  const shape = [...tensor.shape];
  switch (prng.below(9)) {
    case 0:
      shape[axis] = prng.pick(sizes);
      return { ...tensor, shape };
    case 1:
      return { ...tensor, shape: prng.pick([[], [...shape, 1], [...shape].reverse(), [1, 1, 1, 1, 1], other.shape]) };
    case 2:
      return { ...tensor, offset: prng.pick(sizes) };
    case 3:
      return { ...tensor, offset: 32 * prng.below(4000) };
    case 4:
      return {
        ...tensor,
        name: prng.pick([other.name, '', 'x'.repeat(5000), `${tensor.name}\n`, 'blk.4294967296.attn_q.weight']),
      };
    case 5:
      return { ...tensor, type: prng.below(45) };
    case 6:
      return { ...tensor, bytes: tensor.bytes.subarray(0, prng.below(tensor.bytes.byteLength + 1)) };
    case 7:
      return { ...tensor, bytes: mutateBytes(tensor.bytes, prng, tensor.bytes.byteLength) };
    default:
      return { ...tensor, type: other.type, bytes: other.bytes };
  }
}

function mutateValue(value: GgufValue, prng: MutationRandom): GgufValue {
  if (value.type === 'array') return mutateArray(value, prng);
  if (value.type === 'string') {
    if (typeof value.value !== 'string') return text('');
    const place = prng.below(value.value.length + 1);
    const patch = prng.pick(['\0', '\n', '{{', '%}', '\u2581', '<', '\u{1f600}', 'x'.repeat(70_000), '']);
    return text(value.value.slice(0, place) + patch + value.value.slice(place + prng.below(3)));
  }
  if (typeof value.value === 'boolean') return { ...value, value: !value.value };
  const wild = [...sizes.map(Number), -1, -0.5, Number.NaN, Number.POSITIVE_INFINITY, 1e-45, Number(value.value) + 1];
  const number = prng.pick(wild);
  if (value.type === 'f32' || value.type === 'f64') return { ...value, value: number };
  return { ...value, value: Number.isInteger(number) ? BigInt(number) : 7 };
}

function mutateArray(value: Extract<GgufValue, { type: 'array' }>, prng: MutationRandom): GgufValue {
  const items = [...value.items];
  if (items.length === 0) return prng.pick(ggufOddities);
  for (let n = 1 + prng.below(4); n > 0; n--) {
    const at = prng.below(items.length);
    const item = items[at] ?? text('');
    switch (prng.below(5)) {
      case 0:
        items.splice(at, 1);
        if (items.length === 0) return { ...value, items };
        break;
      case 1:
        items[at] = prng.pick(items);
        break;
      case 2:
        items.push(item);
        break;
      default:
        items[at] = item.type === 'array' ? item : mutateValue(item, prng);
    }
  }
  return { ...value, items };
}

/** @param span the first bytes, which most changes affect */
export function mutateBytes(original: Uint8Array, prng: MutationRandom, span: number): Uint8Array {
  let bytes = Uint8Array.from(original);
  for (let n = few(prng); n > 0 && bytes.byteLength > 0; n--) {
    const reach = prng.below(4) === 0 ? bytes.byteLength : Math.min(span, bytes.byteLength);
    const at = prng.below(reach);
    switch (prng.below(7)) {
      case 0:
      case 1:
        bytes[at] = (bytes[at] ?? 0) ^ (1 << prng.below(8));
        break;
      case 2:
        bytes[at] = prng.below(256);
        break;
      case 3:
        bytes = bytes.slice(0, at);
        break;
      case 4:
        putNumber(bytes, at, prng);
        break;
      case 5: {
        const piece = bytes.slice(at, at + 1 + prng.below(64));
        const to = prng.below(bytes.byteLength);
        const cut = prng.below(2) === 0 ? 0 : piece.byteLength;
        bytes = new Uint8Array(Buffer.concat([bytes.subarray(0, to), piece, bytes.subarray(to + cut)]));
        break;
      }
      default:
        bytes = new Uint8Array(Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + prng.below(200))]));
    }
  }
  return bytes;
}

function putNumber(bytes: Uint8Array, at: number, prng: MutationRandom): void {
  const number = new Uint8Array(8);
  new DataView(number.buffer).setBigUint64(0, BigInt(prng.pick(sizes)), true);
  bytes.set(number.subarray(0, Math.min(prng.pick([4, 8]), bytes.byteLength - at)), at);
}

function mutateFolder(seed: FolderSeed, prng: MutationRandom): Mutant {
  const whole = unchanged(seed);
  const files = new Map(whole.files);
  for (let n = few(prng); n > 0; n--) {
    const name = prng.pick([...files.keys(), 'config.json', 'tokenizer.json']);
    const json = seed.json[name];
    const bytes = seed.bytes[name];
    if (prng.below(40) === 0) files.delete(name);
    else if (json !== undefined) files.set(name, mutateJsonFile(json, prng));
    else if (bytes !== undefined)
      files.set(name, name.endsWith('.jinja') ? prng.pick(templates) : mutateSafetensors(bytes, prng));
  }
  return { files, opens: whole.opens };
}

function mutateJsonFile(json: Json, prng: MutationRandom): string | Uint8Array {
  const written = spellMutated(json, prng);
  return prng.below(6) > 0 ? written : mutateBytes(new TextEncoder().encode(written), prng, written.length);
}

/** JSON text with one to three values, keys or members changed. */
export function spellMutated(json: Json, prng: MutationRandom): string {
  const copy = structuredClone(json);
  const holes = new Map<string, string>();
  for (let n = few(prng); n > 0; n--) mutateNode(copy, prng, holes);
  return JSON.stringify(copy).replaceAll(/"@hole(\d+)"/g, (hole, number) => holes.get(number) ?? hole);
}

/** Changes a random place. Text that no JSON value can express is left as a hole. */
function mutateNode(root: Json, prng: MutationRandom, holes: Map<string, string>): void {
  let node = root;
  for (;;) {
    if (typeof node !== 'object' || node === null) return;
    const keys = Object.keys(node);
    if (keys.length === 0) return;
    const key = prng.pick(keys);
    const members = node as Record<string, Json>;
    const child = members[key] ?? null;
    if (typeof child === 'object' && child !== null && Object.keys(child).length > 0 && prng.below(5) > 0) {
      node = child;
      continue;
    }
    switch (prng.below(8)) {
      case 0:
        if (Array.isArray(node)) node.splice(Number(key), 1);
        else delete members[key];
        return;
      case 1:
        members[prng.pick([...keys, 'type', 'rope_scaling', 'layer_types', 'quantization_config'])] =
          structuredClone(child);
        return;
      case 2:
        members[key] = structuredClone(members[prng.pick(keys)] ?? null);
        return;
      case 3:
        members[key] = key.includes('template') ? prng.pick(templates) : prng.pick(words);
        return;
      default: {
        const number = String(holes.size);
        holes.set(number, hostileJson(prng));
        members[key] = `@hole${number}`;
      }
    }
    return;
  }
}

const words: readonly string[] = [
  ...[
    '',
    'llama',
    'gemma2',
    'gpt2',
    'mamba',
    'yarn',
    'llama3',
    'dynamic',
    'relu',
    'gelu',
    'BPE',
    'Unigram',
    'WordPiece',
  ],
  ...[
    'WordLevel',
    'Sequence',
    'ByteLevel',
    'Metaspace',
    'Split',
    'Digits',
    'NFKC',
    'Lowercase',
    'Precompiled',
    'Replace',
  ],
  ...[
    '(a+)+$',
    '([a-z]+)*x',
    '(',
    '[',
    '\\p{Nope}',
    '(?<=x',
    '.*.*.*.*=.*',
    'F64',
    'U8',
    '../../etc/passwd',
    '/etc/passwd',
  ],
  ...[
    'model.safetensors',
    'a\nb',
    '\ud800',
    'ByteFallback',
    'Fuse',
    'Strip',
    'Isolated',
    'MergedWithPrevious',
    'Prepend',
  ],
];

function hostileJson(prng: MutationRandom): string {
  const deep = 1 + prng.below(20_000);
  switch (prng.below(12)) {
    case 0:
      return '['.repeat(deep) + ']'.repeat(deep);
    case 1:
      return `${'{"a":'.repeat(deep)}1${'}'.repeat(deep)}`;
    case 2:
      return `[${'1,'.repeat(deep)}1]`;
    case 3:
      return JSON.stringify('x'.repeat(deep));
    case 4:
    case 5:
    case 6:
      return prng.pick(jsonOddities);
    default:
      return prng.pick(jsonNumbers);
  }
}

/** Changes the structure of the JSON header in half of the cases, else any byte. */
function mutateSafetensors(bytes: Uint8Array, prng: MutationRandom): Uint8Array {
  const headerBytes = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (prng.below(2) === 0) return mutateBytes(bytes, prng, 8 + headerBytes);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + headerBytes))) as Json;
  const written = new TextEncoder().encode(spellMutated(header, prng));
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(written.byteLength), true);
  return new Uint8Array(Buffer.concat([length, written, bytes.subarray(8 + headerBytes)]));
}
