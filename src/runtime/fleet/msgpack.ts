// MessagePack: the types that engines use in their KV events and load reports. Integers beyond 2^53 are BigInts.

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
