// Random prompts of exact lengths, as token ids, so that every server computes the same number of tokens.
import { randomInt } from 'node:crypto';

export interface PromptSource {
  /** A new prompt. */
  take(tokens: number): number[];
}

// Ids in the vocabulary of every model, above the special tokens.
const firstTokenId = 300;
const tokenIds = 3500;

export const randomPrompts: PromptSource = {
  take: (tokens) => Array.from({ length: tokens }, () => firstTokenId + randomInt(tokenIds)),
};
