// Sizes of an opened model, from its headers.
import { elementCount, type ModelFiles } from '../../../weights/types.ts';

export function tensorBytes(files: ModelFiles): number {
  let bytes = 0;
  for (const tensor of files.tensors()) bytes += tensor.byteLength;
  return bytes;
}

/** Values in all tensors, also in those of unreadable types. */
export function parameterCount(files: ModelFiles): number {
  let count = 0;
  for (const { shape } of files.tensors()) count += elementCount(shape);
  for (const { shape } of files.unsupportedTensors()) count += elementCount(shape);
  return count;
}

/** Stored bytes of each type; undefined for an unreadable type. */
export function bytesByType(files: ModelFiles): Record<string, number | undefined> {
  const bytes: Record<string, number | undefined> = {};
  for (const { type, byteLength } of files.tensors()) bytes[type] = (bytes[type] ?? 0) + byteLength;
  for (const { typeName } of files.unsupportedTensors()) bytes[typeName] ??= undefined;
  return bytes;
}

/** KV bytes per token in bf16, all layers. */
export function kvBytesPerToken({ config }: ModelFiles): number {
  return config.layers * 2 * config.kvHeads * config.headDim * 2;
}
