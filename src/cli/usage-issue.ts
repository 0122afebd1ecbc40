// What is wrong with an option's value, in one line that names the part at fault.
import type { z } from 'zod';

type Issue = z.core.$ZodIssue;
/** Options whose values are for nobody's log. */
const secrets: ReadonlySet<PropertyKey> = new Set(['token', 'apiKey']);
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
  const shown = secrets.has(name) ? '' : ` ${written(value)}`;
  return `Cannot use --${flagOf(String(name))}${shown}: ${what === '' ? '' : `${what}: `}${message}`;
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

/** What stands before the host of an address is a secret, too. */
function written(value: unknown): string {
  const isShort = typeof value !== 'object' || value === null || isPlainList(value);
  return (isShort ? String(value) : JSON.stringify(value)).replace(/:\/\/[^/\s]*@/g, '://');
}

function isPlainList(value: unknown): boolean {
  return Array.isArray(value) && value.length > 0 && value.every((each) => typeof each !== 'object');
}
