// The text side of opened model files; its errors name the file.
import { createModelText, type ModelText } from '../text/model-text.ts';
import { ModelFileError, reasonOf } from '../weights/errors.ts';
import type { ModelFiles } from '../weights/types.ts';

/** undefined: the model has no tokenizer. @throws ModelFileError that names the file with an unusable vocabulary */
export function textOf(files: ModelFiles): ModelText | undefined {
  const source = files.tokenizer;
  if (source === undefined) return undefined;
  try {
    return createModelText(source);
  } catch (error) {
    throw new ModelFileError({ file: files.path, reason: reasonOf(error) });
  }
}
