// MessagePack: the types of KV events and load reports. Integers beyond 2^53 are BigInts.

export type MsgpackValue =
  | undefined
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | readonly MsgpackValue[]
  | { readonly [key: string]: MsgpackValue };

const depthMax = 64;
const text = new TextDecoder('utf-8', { fatal: true });

/** Nil is undefined. Byte strings share the memory of `bytes`. @throws RangeError if the bytes are not one value */
export function decodeMsgpack(bytes: Uint8Array): MsgpackValue {
  const reader = new Reader(bytes);
  try {
    const value = reader.value(0);
    if (!reader.isAtEnd) throw new RangeError('Cannot decode MessagePack: bytes follow the value');
    return value;
  } catch (error) {
    if (error instanceof RangeError && error.message.startsWith('Cannot decode')) throw error;
    throw new RangeError('Cannot decode MessagePack: the value is cut off or not valid UTF-8');
  }
}

class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  value(depth: number): MsgpackValue {
    if (depth > depthMax) throw new RangeError(`Cannot decode MessagePack: it is nested deeper than ${depthMax}`);
    const type = this.#uint(1);
    if (type < 0x80) return type;
    if (type < 0x90) return this.#map(type & 0x0f, depth);
    if (type < 0xa0) return this.#array(type & 0x0f, depth);
    if (type < 0xc0) return this.#string(type & 0x1f);
    if (type >= 0xe0) return type - 0x100;
    switch (type) {
      case 0xc0:
        return undefined;
      case 0xc2:
      case 0xc3:
        return type === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.#take(this.#uint(1 << (type - 0xc4)));
      case 0xca:
        return this.#view.getFloat32(this.#advance(4));
      case 0xcb:
        return this.#view.getFloat64(this.#advance(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.#uint(1 << (type - 0xcc));
      case 0xcf:
        return narrow(this.#view.getBigUint64(this.#advance(8)));
      case 0xd0:
        return this.#view.getInt8(this.#advance(1));
      case 0xd1:
        return this.#view.getInt16(this.#advance(2));
      case 0xd2:
        return this.#view.getInt32(this.#advance(4));
      case 0xd3:
        return narrow(this.#view.getBigInt64(this.#advance(8)));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#string(this.#uint(1 << (type - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.#array(this.#uint(2 << (type - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.#map(this.#uint(2 << (type - 0xde)), depth);
      default:
        throw new RangeError(`Cannot decode MessagePack: type 0x${type.toString(16)} is not supported`);
    }
  }

  #array(length: number, depth: number): MsgpackValue[] {
    // Each element takes a byte at least: a false length allocates nothing.
    if (length > this.#bytes.length - this.#at) throw new RangeError('cut off');
    const values = new Array<MsgpackValue>(length);
    for (let i = 0; i < length; i++) values[i] = this.value(depth + 1);
    return values;
  }

  #map(length: number, depth: number): Record<string, MsgpackValue> {
    const map: Record<string, MsgpackValue> = Object.create(null);
    for (let i = 0; i < length; i++) {
      const key = this.value(depth + 1);
      if (typeof key !== 'string' && typeof key !== 'number')
        throw new RangeError('Cannot decode MessagePack: a key is neither a string nor a number');
      map[key] = this.value(depth + 1);
    }
    return map;
  }

  #string(length: number): string {
    return text.decode(this.#take(length));
  }

  #take(length: number): Uint8Array {
    const at = this.#advance(length);
    return this.#bytes.subarray(at, at + length);
  }

  #uint(length: number): number {
    const at = this.#advance(length);
    if (length === 1) return this.#view.getUint8(at);
    return length === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  #advance(length: number): number {
    const at = this.#at;
    if (at + length > this.#bytes.length) throw new RangeError('cut off');
    this.#at = at + length;
    return at;
  }
}

function narrow(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** Values to encode. An object leaves out its undefined members, a `Map` does not. */
export type Packed =
  | undefined
  | number
  | bigint
  | string
  | Uint8Array
  | Int32Array
  | readonly Packed[]
  | ReadonlyMap<string, Packed>
  | { readonly [key: string]: Packed };

/** Integers take their shortest form, other numbers are doubles. Undefined is nil; an `Int32Array` is an array. */
export function encodeMsgpack(value: Packed): Buffer {
  const writer = new Writer();
  writer.value(value);
  return writer.bytes;
}

/** The types of a length below 2^8, 2^16 and 2^32; arrays and maps have none for 2^8. */
type LengthTypes = readonly [of8: number | undefined, of16: number, of32: number];

class Writer {
  #bytes = Buffer.allocUnsafe(1024);
  #at = 0;

  get bytes(): Buffer {
    return this.#bytes.subarray(0, this.#at);
  }

  value(value: Packed): void {
    if (value === undefined) this.#uint(0xc0, 1);
    else if (typeof value === 'number') this.#number(value);
    else if (typeof value === 'bigint') this.#bigint(value);
    else if (typeof value === 'string') {
      const utf8 = Buffer.from(value);
      this.#length(utf8.length, 0xa0, 32, [0xd9, 0xda, 0xdb]);
      this.#copy(utf8);
    } else if (value instanceof Uint8Array) {
      this.#length(value.length, 0, 0, [0xc4, 0xc5, 0xc6]);
      this.#copy(value);
    } else if (value instanceof Int32Array || Array.isArray(value)) {
      const items: Int32Array | readonly Packed[] = value;
      this.#length(items.length, 0x90, 16, [undefined, 0xdc, 0xdd]);
      for (const item of items) this.value(item);
    } else {
      const entries =
        value instanceof Map ? [...value] : Object.entries(value).filter(([, each]) => each !== undefined);
      this.#length(entries.length, 0x80, 16, [undefined, 0xde, 0xdf]);
      for (const [key, each] of entries) {
        this.value(key);
        this.value(each);
      }
    }
  }

  #number(value: number): void {
    if (!Number.isSafeInteger(value)) {
      this.#uint(0xcb, 1);
      const at = this.#reserve(8);
      this.#bytes.writeDoubleBE(value, at);
    } else if (value < -32) this.#bigint(BigInt(value));
    else if (value < 0) this.#uint(0x100 + value, 1);
    else if (value < 0x80) this.#uint(value, 1);
    else if (value >= 2 ** 32) this.#bigint(BigInt(value));
    else this.#length(value, 0, 0, [0xcc, 0xcd, 0xce]);
  }

  #bigint(value: bigint): void {
    this.#uint(value < 0n ? 0xd3 : 0xcf, 1);
    const at = this.#reserve(8);
    this.#bytes.writeBigUInt64BE(BigInt.asUintN(64, value), at);
  }

  /** Lengths below `fixed` are part of the type. */
  #length(length: number, type: number, fixed: number, [of8, of16, of32]: LengthTypes): void {
    if (length < fixed) this.#uint(type | length, 1);
    else if (length < 0x100 && of8 !== undefined) this.#uint(of8 * 0x100 + length, 2);
    else if (length < 0x10000) this.#uint(of16 * 0x10000 + length, 3);
    else this.#uint(of32 * 2 ** 32 + length, 5);
  }

  #uint(value: number, bytes: number): void {
    const at = this.#reserve(bytes);
    this.#bytes.writeUIntBE(value, at, bytes);
  }

  #copy(bytes: Uint8Array): void {
    const at = this.#reserve(bytes.length);
    this.#bytes.set(bytes, at);
  }

  /** Where the next bytes go: the buffer may be another one afterwards. */
  #reserve(bytes: number): number {
    const at = this.#at;
    this.#at += bytes;
    if (this.#at > this.#bytes.length) {
      const grown = Buffer.allocUnsafe(Math.max(this.#at, 2 * this.#bytes.length));
      grown.set(this.#bytes);
      this.#bytes = grown;
    }
    return at;
  }
}
