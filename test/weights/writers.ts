// Writers of small GGUF and safetensors files, valid or invalid, for tests.
import type { TensorType } from '../../src/weights/types.ts';

const scalarIds = { u8: 0, i8: 1, u16: 2, i16: 3, u32: 4, i32: 5, f32: 6, bool: 7, u64: 10, i64: 11, f64: 12 } as const;
const stringId = 8;
const arrayId = 9;

type ScalarName = keyof typeof scalarIds;

export type GgufValue =
  | { readonly type: ScalarName; readonly value: number | bigint | boolean }
  | { readonly type: 'string'; readonly value: string | Uint8Array }
  | {
      readonly type: 'array';
      readonly items: readonly GgufValue[];
      readonly itemType: ScalarName | 'string' | 'array';
    };

/** Shorthands, for example u32('llama.block_count', 2). */
export const u32 = (value: number): GgufValue => ({ type: 'u32', value });
export const f32 = (value: number): GgufValue => ({ type: 'f32', value });
export const bool = (value: boolean): GgufValue => ({ type: 'bool', value });
export const text = (value: string): GgufValue => ({ type: 'string', value });
export const texts = (values: readonly string[]): GgufValue => ({
  type: 'array',
  itemType: 'string',
  items: values.map(text),
});
export const numbers = (itemType: ScalarName, values: readonly number[]): GgufValue => ({
  type: 'array',
  itemType,
  items: values.map((value) => ({ type: itemType, value })),
});

export const ggmlTypeIds: Readonly<Record<TensorType, number>> = {
  f32: 0,
  f16: 1,
  q4_0: 2,
  q4_1: 3,
  q8_0: 8,
  q5_0: 6,
  q5_1: 7,
  q2_k: 10,
  q3_k: 11,
  q4_k: 12,
  q5_k: 13,
  q6_k: 14,
  bf16: 30,
};

export interface GgufTensorSpec {
  readonly name: string;
  /** A type by name, or any number to write as the type. */
  readonly type: TensorType | number;
  /** Row-major, outermost first. */
  readonly shape: readonly (number | bigint)[];
  readonly bytes: Uint8Array;
  /** Offset to write; default: the real offset in the tensor data. */
  readonly offset?: number | bigint;
}

export interface GgufSpec {
  readonly metadata: readonly (readonly [key: string, value: GgufValue])[];
  readonly tensors: readonly GgufTensorSpec[];
  readonly version?: number;
  /** Also written as `general.alignment` if given. */
  readonly alignment?: number;
  /** Counts to write; default: the real counts. */
  readonly tensorCount?: bigint;
  readonly metadataCount?: bigint;
}

export function writeGguf(spec: GgufSpec): Uint8Array {
  const { tensors, version = 3, alignment = 32 } = spec;
  const metadata = [...spec.metadata];
  if (spec.alignment !== undefined) metadata.push(['general.alignment', u32(spec.alignment)]);
  const out = new ByteWriter();
  out.scalar('u32', 0x46554747);
  out.scalar('u32', version);
  out.scalar('u64', spec.tensorCount ?? BigInt(tensors.length));
  out.scalar('u64', spec.metadataCount ?? BigInt(metadata.length));
  for (const [key, value] of metadata) {
    out.string(key);
    out.scalar('u32', typeId(value.type));
    writeValue(out, value);
  }
  let place = 0;
  for (const { name, type, shape, bytes, offset } of tensors) {
    out.string(name);
    out.scalar('u32', shape.length);
    for (const size of [...shape].reverse()) out.scalar('u64', size);
    out.scalar('u32', typeof type === 'number' ? type : ggmlTypeIds[type]);
    out.scalar('u64', offset ?? place);
    place += Math.ceil(bytes.byteLength / alignment) * alignment;
  }
  for (const { bytes } of tensors) {
    out.pad(alignment);
    out.bytes(bytes);
  }
  return out.finish();
}

export interface SafetensorsSpec {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: Uint8Array;
}

export function writeSafetensors(tensors: readonly SafetensorsSpec[]): Uint8Array {
  let place = 0;
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  for (const { name, dtype, shape, bytes } of tensors) {
    header[name] = { dtype, shape, data_offsets: [place, place + bytes.byteLength] };
    place += bytes.byteLength;
  }
  return rawSafetensors(JSON.stringify(header), ...tensors.map(({ bytes }) => bytes));
}

/** A safetensors file with any header text and any stated header length. */
export function rawSafetensors(header: string, ...data: readonly Uint8Array[]): Uint8Array {
  const out = new ByteWriter();
  out.string(header);
  for (const bytes of data) out.bytes(bytes);
  return out.finish();
}

function typeId(type: ScalarName | 'string' | 'array'): number {
  if (type === 'string') return stringId;
  return type === 'array' ? arrayId : scalarIds[type];
}

function writeValue(out: ByteWriter, value: GgufValue): void {
  if (value.type === 'string') out.string(value.value);
  else if (value.type === 'array') {
    out.scalar('u32', typeId(value.itemType));
    out.scalar('u64', value.items.length);
    for (const item of value.items) writeValue(out, item);
  } else out.scalar(value.type, value.value);
}

/** Appends little-endian bytes. */
class ByteWriter {
  readonly #parts: Uint8Array[] = [];
  #length = 0;

  bytes(bytes: Uint8Array): void {
    this.#parts.push(bytes);
    this.#length += bytes.byteLength;
  }

  scalar(type: ScalarName, value: number | bigint | boolean): void {
    const view = new DataView(new ArrayBuffer(8));
    this.bytes(new Uint8Array(view.buffer, 0, setScalar(view, type, value)));
  }

  /** Writes the length as u64, then the bytes. */
  string(value: string | Uint8Array): void {
    const bytes = typeof value === 'string' ? new TextEncoder().encode(value) : value;
    this.scalar('u64', bytes.byteLength);
    this.bytes(bytes);
  }

  pad(alignment: number): void {
    this.bytes(new Uint8Array((alignment - (this.#length % alignment)) % alignment));
  }

  finish(): Uint8Array {
    return new Uint8Array(Buffer.concat(this.#parts));
  }
}

function setScalar(view: DataView, type: ScalarName, value: number | bigint | boolean): number {
  const number = Number(value);
  switch (type) {
    case 'u8':
    case 'i8':
    case 'bool':
      view.setInt8(0, number);
      return 1;
    case 'u16':
    case 'i16':
      view.setInt16(0, number, true);
      return 2;
    case 'u32':
    case 'i32':
      view.setInt32(0, number, true);
      return 4;
    case 'f32':
      view.setFloat32(0, number, true);
      return 4;
    case 'f64':
      view.setFloat64(0, number, true);
      return 8;
    default:
      view.setBigUint64(0, BigInt.asUintN(64, BigInt(value)), true);
      return 8;
  }
}
