// Random prompts of exact lengths, as token ids, so that every server computes the same number of tokens.
import { randomInt } from 'node:crypto';

export interface PromptSource {
  /** A new prompt. */
  take(tokens: number): number[];
}

/** Prompts of ids from [first, first + count). */
export function randomPrompts(first: number, count: number): PromptSource {
  return { take: (tokens) => Array.from({ length: tokens }, () => first + randomInt(count)) };
}
