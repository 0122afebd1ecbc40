// What is wrong with an option's value, in one line that names the part at fault.
import type { z } from 'zod';

type Issue = z.core.$ZodIssue;
/** What the schema's library says of a value that is missing or of no form at all. */
const saysNothing = 'Invalid input';

/**
 * The first of them.
 * @param given options as they were written
 * @param flagOf how a flag spells an option's name
 */
export function describeIssue(
  issues: readonly Issue[],
  given: Readonly<Record<string, unknown>>,
  flagOf: (name: string) => string,
): string {
  const [first] = issues;
  const [name = 'options', ...inside] = first?.path ?? [];
  const value = given[String(name)];
  const { message, path } = first === undefined ? { message: 'invalid', path: [] } : innermost(first);
  const place = [...inside, ...path].map((part) =>
    typeof part === 'number' ? `[${part}]` : `.${flagOf(String(part))}`,
  );
  const what = isPlainList(value) ? '' : place.join('').replace(/^\./, '');
  return `Cannot use --${flagOf(String(name))} ${written(value)}: ${what === '' ? '' : `${what}: `}${message}`;
}

/** Of forms that a value may have, that which was meant: the one that it is at fault in farthest inside. */
function innermost(issue: Issue): { readonly message: string; readonly path: readonly PropertyKey[] } {
  if (issue.code !== 'invalid_union') return { message: issue.message, path: [] };
  const found = issue.errors.flatMap(([first]) => {
    if (first === undefined) return [];
    const { message, path } = innermost(first);
    return message === saysNothing ? [] : [{ message, path: [...first.path, ...path] }];
  });
  const [best] = found.sort((a, b) => b.path.length - a.path.length);
  return best === undefined || best.path.length === 0 ? { message: issue.message, path: [] } : best;
}

function written(value: unknown): string {
  return typeof value === 'object' && value !== null && !isPlainList(value) ? JSON.stringify(value) : String(value);
}

function isPlainList(value: unknown): boolean {
  return Array.isArray(value) && value.length > 0 && value.every((each) => typeof each !== 'object');
}
