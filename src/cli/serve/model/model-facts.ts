// Sizes of an opened model, from its headers.

import { buildGraph } from '../../../models/registry.ts';
import type { ModelConfig } from '../../../util/model-config.ts';
import { reasonOf } from '../../../weights/errors.ts';
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

/** Why the model cannot be served; undefined: nothing in its headers prevents it. */
export function unservable(files: ModelFiles): string | undefined {
  if ([...files.tensors(), ...files.unsupportedTensors()].length === 0)
    return 'cannot be served: it holds a vocabulary without weights';
  try {
    buildGraph(files.config);
  } catch (error) {
    return `cannot be served: ${reasonOf(error)}`;
  }
  const [unreadable] = files.unsupportedTensors();
  return (
    unreadable && `cannot be served: the type ${unreadable.typeName} of tensor ${unreadable.name} is not supported`
  );
}

/** Choices that follow from the configuration and the context, for the start-up lines. */
export function configurationNotes(config: ModelConfig, context: number): readonly string[] {
  const { positions, encoder, embedding, ranking } = config;
  if (ranking === 'label' || ranking === 'rows')
    return ['A reranker: it serves rankings (/v1/rerank), no chats or completions'];
  if (encoder?.labels !== undefined)
    return ['A cross-encoder: it serves rankings (/v1/rerank), no chats or completions'];
  if (encoder !== undefined) {
    const pooling = embedding?.pooling ?? 'mean';
    return [
      `An encoder: it serves embeddings (${pooling} pooling) of up to ${context} tokens, no chats or completions`,
    ];
  }
  if (positions.kind !== 'rope' || positions.rope.scaling.kind !== 'longrope') return [];
  const original = positions.rope.scaling.originalMaxPositions;
  const short = `short up to ${original.toLocaleString('en')} positions`;
  if (context <= original) return [`RoPE: the short factors of longrope apply (${short})`];
  return [`RoPE: the long factors of longrope apply (${short}; --context ${original} keeps them)`];
}
