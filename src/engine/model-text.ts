// The text side of opened model files, with errors that name the file.
import { createModelText, type ModelText } from '../text/model-text.ts';
import { ModelFileError, reasonOf } from '../weights/errors.ts';
import type { ModelFiles } from '../weights/types.ts';

/** undefined: the model has no tokenizer. @throws ModelFileError naming the file whose vocabulary cannot be used */
export function textOf(files: ModelFiles): ModelText | undefined {
  const source = files.tokenizer;
  if (source === undefined) return undefined;
  try {
    return createModelText(source);
  } catch (error) {
    throw new ModelFileError({ file: files.path, reason: reasonOf(error) });
  }
}
