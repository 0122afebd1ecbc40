// The root hash of a model's blocks, which depends on the forms of weights, inputs, and keys and values.
import { modelFingerprint } from '../../engine/fingerprint.ts';
import { kvTypeOf, type ModelForms } from '../../engine/forms.ts';
import type { BlockRoot } from '../../runtime/threads/thread-protocol.ts';
import type { ModelFiles } from '../../weights/types.ts';

/** @param sparseLayers by layer: true for layers with a budget; undefined: none has one */
export function blockRoot(files: ModelFiles, forms: ModelForms, sparseLayers: readonly boolean[] = []): BlockRoot {
  const { positions, attention } = files.config;
  // Where both kinds exist, a block has the pages of one kind after those of the other.
  const hasBoth = sparseLayers.includes(true) && sparseLayers.includes(false);
  return {
    modelFingerprint: modelFingerprint(files),
    weightForm: forms.weights,
    inputForm: forms.inputs,
    kvType: kvTypeOf(forms),
    rope: JSON.stringify([positions, attention]),
    ...(hasBoth && { sparseLayers: sparseLayers.map(Number).join('') }),
  };
}
