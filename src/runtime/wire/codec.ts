// Serialization of plain data with typed arrays: a JSON head, then the elements of the arrays in little-endian order.
import { oneLine } from '../../util/one-line.ts';

const arrayTypes = {
  u8: Uint8Array,
  i32: Int32Array,
  u32: Uint32Array,
  f32: Float32Array,
} as const;
type TypeName = keyof typeof arrayTypes;
type Elements = InstanceType<(typeof arrayTypes)[TypeName]>;

/** Field of the head's placeholder for an array. No field of a message has this name. */
const mark = '~';
const headLengthBytes = 4;

/** @throws Error for typed arrays of other types, and for data that JSON cannot represent */
export function encode(value: unknown): Uint8Array {
  const arrays: Elements[] = [];
  let tailBytes = 0;
  const text = JSON.stringify(value, (_, part: unknown) => {
    if (!ArrayBuffer.isView(part)) return part;
    const array = part as Elements;
    const placeholder = { [mark]: typeOf(part), at: tailBytes, length: array.length };
    arrays.push(array);
    tailBytes += array.byteLength;
    return placeholder;
  });
  const head = new TextEncoder().encode(text);
  const bytes = new Uint8Array(headLengthBytes + head.length + tailBytes);
  new DataView(bytes.buffer).setUint32(0, head.length, true);
  bytes.set(head, headLengthBytes);
  let at = headLengthBytes + head.length;
  for (const { buffer, byteOffset, byteLength } of arrays) {
    bytes.set(new Uint8Array(buffer, byteOffset, byteLength), at);
    at += byteLength;
  }
  return bytes;
}

function typeOf(view: ArrayBufferView): TypeName {
  for (const [name, type] of Object.entries(arrayTypes)) if (view.constructor === type) return name as TypeName;
  throw new Error(`Cannot encode a message: it holds a ${view.constructor.name}`);
}

/** The arrays are copies. The fields are not validated. @throws Error for bytes that `encode` did not produce */
export function decode(bytes: Uint8Array): unknown {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const headBytes = bytes.length < headLengthBytes ? Number.POSITIVE_INFINITY : view.getUint32(0, true);
  if (headBytes > bytes.length - headLengthBytes)
    throw new Error(`Cannot decode a message: ${bytes.length} bytes do not hold its head`);
  const tail = bytes.subarray(headLengthBytes + headBytes);
  const text = new TextDecoder('utf-8', { fatal: true }).decode(
    bytes.subarray(headLengthBytes, -tail.length || undefined),
  );
  try {
    return JSON.parse(text, (_, part: unknown) => {
      return typeof part === 'object' && part !== null && mark in part ? arrayOf(part, tail) : part;
    });
  } catch (error) {
    // The text of the message is in the parser's reason.
    if (error instanceof SyntaxError) throw new Error(`Cannot decode a message: ${oneLine(error.message, 100)}`);
    throw error;
  }
}

function arrayOf(placeholder: object, tail: Uint8Array): Elements {
  const { [mark]: name, at, length } = placeholder as { [mark]: unknown; at?: unknown; length?: unknown };
  const type = typeof name === 'string' && Object.hasOwn(arrayTypes, name) ? arrayTypes[name as TypeName] : undefined;
  const end = type === undefined ? Number.NaN : Number(at) + Number(length) * type.BYTES_PER_ELEMENT;
  if (type === undefined || !isCount(at) || !isCount(length) || !(end <= tail.length))
    throw new Error(`Cannot decode a message: the placeholder of an array is invalid: ${describe(placeholder)}`);
  // Not `slice`, which shares memory if the bytes are a Buffer.
  return new type(Uint8Array.from(tail.subarray(at, end)).buffer);
}

/** In one short line: a peer chooses its fields. */
function describe(placeholder: object): string {
  return oneLine(JSON.stringify(placeholder), 100);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && Number(value) >= 0;
}
