// The prompt of a completion: text, token ids, or a list of either. Checked by hand, since lists of ids are long.
import { z } from 'zod';

export type CompletionPrompt = string | string[] | number[] | number[][];

interface Fault {
  readonly path: number[];
  readonly message: string;
}

const kinds = 'expected text, a list of texts, token ids, or lists of token ids';
const isTokenId = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;

function faultOf(prompt: unknown): Fault | undefined {
  if (typeof prompt === 'string') return undefined;
  if (!Array.isArray(prompt)) return { path: [], message: kinds };
  if (prompt.length === 0) return { path: [], message: `${kinds}, not an empty list` };
  if (typeof prompt[0] === 'number') return faultOfIds(prompt, []);
  if (typeof prompt[0] === 'string') {
    const at = prompt.findIndex((entry) => typeof entry !== 'string');
    return at < 0 ? undefined : { path: [at], message: 'expected text like the entries before' };
  }
  for (const [at, entry] of prompt.entries()) {
    if (!Array.isArray(entry))
      return { path: [at], message: at === 0 ? kinds : 'expected token ids like the entries before' };
    if (entry.length === 0) return { path: [at], message: 'expected at least one token id' };
    const fault = faultOfIds(entry, [at]);
    if (fault !== undefined) return fault;
  }
  return undefined;
}

function faultOfIds(ids: readonly unknown[], path: number[]): Fault | undefined {
  const at = ids.findIndex((id) => !isTokenId(id));
  return at < 0 ? undefined : { path: [...path, at], message: 'expected a token id' };
}

export const promptSchema = z.custom<CompletionPrompt>().superRefine((prompt, context) => {
  const fault = faultOf(prompt);
  if (fault !== undefined) context.addIssue({ code: 'custom', ...fault });
});

export const tokenIdsSchema = z
  .custom<number[]>(Array.isArray, 'expected a list of token ids')
  .superRefine((ids, context) => {
    const fault = faultOfIds(ids, []);
    if (fault !== undefined) context.addIssue({ code: 'custom', ...fault });
  });

/** The number of prompts. */
export function promptCount(prompt: CompletionPrompt): number {
  return typeof prompt === 'string' || typeof prompt[0] === 'number' ? 1 : prompt.length;
}
