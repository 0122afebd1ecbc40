// The tensors of an opened model by name; tensors of unsupported types are kept apart.
import { ModelFileError, quoteName } from './errors.ts';
import type { TensorInfo, UnsupportedTensor } from './types.ts';
import { tensorLayouts } from './types.ts';

export class TensorDirectory {
  readonly #tensors = new Map<string, TensorInfo>();
  readonly #unsupported = new Map<
    string,
    { readonly tensor: UnsupportedTensor; readonly file: string; readonly offset: number }
  >();

  add(info: TensorInfo): void {
    this.#refuseDuplicate(info.name, info.file, info.offset);
    this.#tensors.set(info.name, info);
  }

  addUnsupported(tensor: UnsupportedTensor, file: string, offset: number): void {
    this.#refuseDuplicate(tensor.name, file, offset);
    this.#unsupported.set(tensor.name, { tensor, file, offset });
  }

  tensor(name: string): TensorInfo | undefined {
    const unsupported = this.#unsupported.get(name);
    if (unsupported !== undefined) {
      const reason = `tensors of type ${unsupported.tensor.typeName} are not supported: known are ${Object.keys(tensorLayouts).join(', ')}`;
      throw new ModelFileError({ file: unsupported.file, tensor: name, offset: unsupported.offset, reason });
    }
    return this.#tensors.get(name);
  }

  tensors(): Iterable<TensorInfo> {
    return this.#tensors.values();
  }

  *unsupportedTensors(): Iterable<UnsupportedTensor> {
    for (const { tensor } of this.#unsupported.values()) yield tensor;
  }

  /** The file of each tensor, unsupported types included. */
  *placements(): Iterable<readonly [name: string, file: string]> {
    for (const { name, file } of this.#tensors.values()) yield [name, file];
    for (const [name, { file }] of this.#unsupported) yield [name, file];
  }

  #refuseDuplicate(name: string, file: string, offset: number): void {
    if (!this.#tensors.has(name) && !this.#unsupported.has(name)) return;
    throw new ModelFileError({ file, tensor: name, offset, reason: 'two tensors have this name' });
  }
}

/** The buffer of a range read, after a check that the range lies inside the tensor. */
export function readRange(
  info: TensorInfo,
  byteStart: number,
  byteLength: number,
  into: Uint8Array | undefined,
): Uint8Array {
  const inside =
    Number.isSafeInteger(byteStart) && Number.isSafeInteger(byteLength) && byteStart >= 0 && byteLength >= 0;
  if (!inside || byteStart + byteLength > info.byteLength) {
    throw new RangeError(
      `Cannot read tensor ${info.name}: bytes ${byteStart} to ${byteStart + byteLength} of ${info.byteLength}`,
    );
  }
  if (into === undefined) return new Uint8Array(byteLength);
  if (into.byteLength < byteLength)
    throw new RangeError(`Cannot read tensor ${info.name}: ${byteLength} bytes into a buffer of ${into.byteLength}`);
  return into.subarray(0, byteLength);
}

/** @throws ModelFileError when the bytes of two tensors of one file overlap */
export function checkOverlap(
  path: string,
  tensors: readonly { readonly name: string; readonly offset: number; readonly byteLength: number }[],
): void {
  const ordered = tensors.filter((tensor) => tensor.byteLength > 0).sort((a, b) => a.offset - b.offset);
  let previous: (typeof ordered)[number] | undefined;
  for (const tensor of ordered) {
    if (previous !== undefined && tensor.offset < previous.offset + previous.byteLength) {
      const reason = `it overlaps tensor ${quoteName(previous.name)}, which ends at ${previous.offset + previous.byteLength}`;
      throw new ModelFileError({ file: path, tensor: tensor.name, offset: tensor.offset, reason });
    }
    previous = tensor;
  }
}
