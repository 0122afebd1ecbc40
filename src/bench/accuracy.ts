// `kvasir bench accuracy`: forms of a model against its float32 form, on the beginning of a text.
import { type AccuracyForm, type AccuracyRow, measureAccuracy } from '../engine/accuracy.ts';
import type { Backend } from '../kernel/backend.ts';
import type { Tokenizer } from '../text/tokenizer.ts';
import type { ModelFiles } from '../weights/types.ts';

export interface AccuracyBenchOptions {
  readonly files: ModelFiles;
  readonly tokenizer: Tokenizer;
  readonly text: string;
  /** The first tokens of the text, special ones included; fewer for a shorter text. */
  readonly tokens: number;
  readonly forms: readonly AccuracyForm[];
}

export interface AccuracyBenchReport {
  readonly model: string;
  readonly isa: string;
  /** Tokens measured. */
  readonly tokens: number;
  readonly rows: readonly AccuracyRow[];
}

export function benchAccuracy(backend: Backend, options: AccuracyBenchOptions): AccuracyBenchReport {
  const { files, tokenizer, text, forms } = options;
  const tokens = tokenizer.encode(text).slice(0, Math.min(options.tokens, files.config.maxPositions));
  const rows = measureAccuracy({ model: files, backend, tokens, forms });
  return { model: files.id, isa: backend.isa, tokens: tokens.length, rows };
}
