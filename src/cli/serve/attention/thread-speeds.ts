// Measures the speeds of thread teams of this machine, with the kernels and the shapes of a model.
import type { TeamSpeeds } from '../../../core/attention-workers/thread-planner.ts';
import { chooseInputs, kvTypeOf, layerInputs, packedType } from '../../../engine/forms.ts';
import { LayerStack } from '../../../engine/layer-stack.ts';
import { kvTypeCodes } from '../../../kernel/codes.ts';
import { createNativeBackend, type NativeBackend } from '../../../kernel/native/native.ts';
import type { ModelFiles, TensorInfo } from '../../../weights/types.ts';
import type { ModelOptions } from '../../options/options.ts';

type Forms = Pick<ModelOptions, 'weights' | 'inputs' | 'kvType'>;

/** Read in a measurement: beyond the caches of most machines. */
const mebibytesDefault = 64;
/** Rows of a step that arithmetic bounds. */
const manyRows = 64;
/** The fastest counts: other programs can only slow a measurement down. */
const repeats = 3;
const contextTokens = 2048;

export interface MeasuredTeams {
  readonly speeds: readonly TeamSpeeds[];
  /** Bytes of a weight as the kernels read it. */
  readonly weightBytes: number;
}

/** Teams of 1, 2, 4... and all `threads`: at most a second on one thread, less on more. */
export function measureTeams(
  files: ModelFiles,
  threads: number,
  forms: Forms,
  mebibytes = mebibytesDefault,
): MeasuredTeams {
  const sizes: number[] = [];
  for (let size = 1; size < threads; size *= 2) sizes.push(size);
  const teams = [...sizes, threads].map((size) => {
    const backend = createNativeBackend({ threads: size });
    try {
      return measureTeam(backend, files, forms, mebibytes);
    } finally {
      backend.close();
    }
  });
  return { speeds: teams.map(({ speeds }) => speeds), weightBytes: teams[0].weightBytes };
}

function measureTeam(backend: NativeBackend, files: ModelFiles, forms: Forms, mebibytes: number) {
  const { hiddenSize, intermediateSize, heads, kvHeads, headDim } = files.config;
  const type = weightType(files, forms);
  // A part of a large layer is enough.
  const rows = Math.min(intermediateSize, Math.ceil((mebibytes * 2 ** 20) / hiddenSize));
  const layer = { rows, columns: hiddenSize };
  const inputs = chooseInputs(forms.inputs, backend.isa, [type]).form;
  const stack = new LayerStack(backend, layer, type, layerInputs(inputs, [type]), mebibytes * 2 ** 20);
  try {
    const { copies, layerBytes } = stack;
    const fastest = (tokens: number) => Math.min(...stack.time(tokens, copies, repeats)) / 1000;
    const kvSpeeds = Array.from({ length: repeats }, () => {
      const { bytes, seconds } = backend.native.benchDecode(
        ...[backend.handle, kvTypeCodes[kvTypeOf(forms)], kvHeads, heads / kvHeads, headDim],
        ...[contextTokens, mebibytes, 1],
      );
      return bytes / seconds;
    });
    const weights = hiddenSize * rows;
    const speeds = {
      threads: backend.threads,
      weightBytesPerSecond: (copies * layerBytes) / fastest(1),
      operationsPerSecond: (2 * manyRows * copies * weights) / fastest(manyRows),
      kvBytesPerSecond: Math.max(...kvSpeeds),
    };
    return { speeds, weightBytes: layerBytes / weights };
  } finally {
    stack.close();
  }
}

/** The type in which most weights of layers are packed. */
function weightType(files: ModelFiles, { weights }: Forms) {
  const bytes = new Map<TensorInfo['type'], number>();
  for (const info of files.tensors()) {
    if (info.shape.length < 2) continue;
    const type = packedType(info, weights, false);
    bytes.set(type, (bytes.get(type) ?? 0) + info.byteLength);
  }
  return [...bytes].sort((a, b) => b[1] - a[1])[0][0];
}
