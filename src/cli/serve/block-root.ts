// The root hash of a model's blocks, which depends on the forms of weights and inputs.
import { modelFingerprint } from '../../engine/fingerprint.ts';
import { kvTypeOf, type WeightsForm } from '../../engine/forms.ts';
import type { InputForm } from '../../graph/program.ts';
import type { BlockRoot } from '../../runtime/threads/thread-protocol.ts';
import type { ModelFiles } from '../../weights/types.ts';

/** @param sparseLayers by layer: true for layers with a budget; undefined: none has one */
export function blockRoot(
  files: ModelFiles,
  { weights, inputs }: { readonly weights: WeightsForm; readonly inputs: InputForm },
  sparseLayers: readonly boolean[] = [],
): BlockRoot {
  const { positions, attention } = files.config;
  // Where both kinds exist, a block has the pages of one kind after those of the other.
  const hasBoth = sparseLayers.includes(true) && sparseLayers.includes(false);
  return {
    modelFingerprint: modelFingerprint(files),
    weightForm: weights,
    inputForm: inputs,
    kvType: kvTypeOf(inputs),
    rope: JSON.stringify([positions, attention]),
    ...(hasBoth && { sparseLayers: sparseLayers.map(Number).join('') }),
  };
}
