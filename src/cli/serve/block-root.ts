// The root hash of a model's blocks, which depends on the forms of weights and inputs.
import { modelFingerprint } from '../../engine/fingerprint.ts';
import { kvTypeOf } from '../../engine/forms.ts';
import type { BlockRoot } from '../../runtime/threads/thread-protocol.ts';
import type { ModelFiles } from '../../weights/types.ts';
import type { ModelOptions } from '../options/options.ts';

export function blockRoot(files: ModelFiles, { weights, inputs }: Pick<ModelOptions, 'weights' | 'inputs'>): BlockRoot {
  const { positions, attention } = files.config;
  return {
    modelFingerprint: modelFingerprint(files),
    weightForm: weights,
    inputForm: inputs,
    kvType: kvTypeOf(inputs),
    rope: JSON.stringify([positions, attention]),
  };
}
