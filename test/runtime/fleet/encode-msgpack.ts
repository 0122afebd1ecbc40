// Encodes MessagePack as engines do: the shortest form of every value.

export type Packed =
  | undefined
  | number
  | bigint
  | string
  | Uint8Array
  | readonly Packed[]
  | { readonly [key: string]: Packed };

export function encodeMsgpack(value: Packed): Buffer {
  if (value === undefined) return Buffer.of(0xc0);
  if (typeof value === 'string') return sized(Buffer.from(value), 0xa0, 32, [0xd9, 0xda, 0xdb]);
  if (value instanceof Uint8Array) return sized(Buffer.from(value), undefined, 0, [0xc4, 0xc5, 0xc6]);
  if (typeof value === 'bigint') {
    const bytes = Buffer.alloc(9, value < 0n ? 0xd3 : 0xcf);
    if (value < 0n) bytes.writeBigInt64BE(value, 1);
    else bytes.writeBigUInt64BE(value, 1);
    return bytes;
  }
  if (typeof value === 'number') return encodeNumber(value);
  if (Array.isArray(value)) {
    const items = (value as readonly Packed[]).map(encodeMsgpack);
    return Buffer.concat([header(items.length, 0x90, [0xdc, 0xdd]), ...items]);
  }
  const entries = Object.entries(value).filter(([, each]) => each !== undefined);
  const items = entries.flatMap(([key, each]) => [encodeMsgpack(key), encodeMsgpack(each)]);
  return Buffer.concat([header(entries.length, 0x80, [0xde, 0xdf]), ...items]);
}

function encodeNumber(value: number): Buffer {
  if (!Number.isSafeInteger(value)) {
    const bytes = Buffer.alloc(9, 0xcb);
    bytes.writeDoubleBE(value, 1);
    return bytes;
  }
  if (value < 0) return value >= -32 ? Buffer.of(0x100 + value) : encodeMsgpack(BigInt(value));
  if (value < 0x80) return Buffer.of(value);
  if (value < 0x100) return Buffer.of(0xcc, value);
  if (value < 0x10000) return Buffer.of(0xcd, value >> 8, value & 0xff);
  if (value >= 2 ** 32) return encodeMsgpack(BigInt(value));
  const bytes = Buffer.alloc(5, 0xce);
  bytes.writeUInt32BE(value, 1);
  return bytes;
}

function header(length: number, fix: number, [of16, of32]: readonly [number, number]): Buffer {
  if (length < 16) return Buffer.of(fix | length);
  if (length < 0x10000) return Buffer.of(of16, length >> 8, length & 0xff);
  const bytes = Buffer.alloc(5, of32);
  bytes.writeUInt32BE(length, 1);
  return bytes;
}

function sized(
  bytes: Buffer,
  fix: number | undefined,
  below: number,
  types: readonly [number, number, number],
): Buffer {
  const { length } = bytes;
  if (fix !== undefined && length < below) return Buffer.concat([Buffer.of(fix | length), bytes]);
  if (length < 0x100) return Buffer.concat([Buffer.of(types[0], length), bytes]);
  if (length < 0x10000) return Buffer.concat([Buffer.of(types[1], length >> 8, length & 0xff), bytes]);
  const head = Buffer.alloc(5, types[2]);
  head.writeUInt32BE(length, 1);
  return Buffer.concat([head, bytes]);
}
