// Why an engine or its answer is unusable, in one line for logs and answers.
import { z } from 'zod';
import { oneLine } from '../../util/one-line.ts';

const reasonCharactersMax = 300;

/** The code of a system error, the first issue of a validator, or else the first line of the message. */
export function reasonOf(error: unknown): string {
  return oneLine(textOf(error), reasonCharactersMax);
}

function textOf(error: unknown): string {
  if (error instanceof z.ZodError) {
    const [{ path, message }] = error.issues;
    return path.length === 0 ? message : `${path.join('.')}: ${message}`;
  }
  const code = codeOf(error);
  if (code !== undefined) return code;
  return error instanceof Error ? error.message.split('\n')[0] : String(error);
}

/** The code of a system error, for example ECONNREFUSED. */
export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** What an engine states in the body of an error. */
export function statedReason(body: string): string {
  const match = /"message"\s*:\s*"((?:[^"\\]|\\.){1,300})/.exec(body);
  return oneLine(match?.[1] ?? body, reasonCharactersMax);
}
