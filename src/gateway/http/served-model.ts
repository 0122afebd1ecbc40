// The model as the gateway knows it: its name, its text side and its limits.
import type { ChatTemplate } from '../../text/template/chat-template.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';

export interface SamplingDefaults {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
}

export interface ServedModel {
  readonly id: string;
  readonly createdS: number;
  /** Prompt plus output, tokens. */
  readonly contextTokens: number;
  /** What one instance holds alone, where instances borrow from one another: output that nobody bounds ends there. */
  readonly homeTokens?: number | undefined;
  readonly vocabSize: number;
  /** Absent: the model is served for token ids only. */
  readonly tokenizer: Tokenizer | undefined;
  readonly chatTemplate: ChatTemplate | undefined;
  /** How the template spells the ends of a sequence. */
  readonly bosToken: string | undefined;
  readonly eosToken: string | undefined;
  /** All ids that end a sequence. */
  readonly eosIds: readonly number[];
  readonly defaults: SamplingDefaults;
}
