// Describes an invalid option in one line that names the invalid part.
import type { z } from 'zod';
import { requirementOf } from '../gateway/http/requirement.ts';

type Issue = z.core.$ZodIssue;
/** Options with secret values, which are not printed. */
const secrets: ReadonlySet<PropertyKey> = new Set(['token', 'apiKey', 'adminKey']);
/** The message of zod for a missing value, or for one that matches no form. */
const genericMessage = 'Invalid input';

/**
 * Describes the first issue.
 * @param given unparsed options
 * @param flagOf the flag of an option name
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
  const what = isPlainList(value) ? '' : placeOf([...inside, ...path], flagOf);
  const shown = secrets.has(name) ? '' : ` ${shownValue(value)}`;
  return `Cannot use --${flagOf(String(name))}${shown}: ${what === '' ? '' : `${what}: `}${message}`;
}

/**
 * Describes the first issue of a file that may have secrets: its place and the requirement, without any value.
 * @param nameOf the name of a field in the file
 */
export function describeFileIssue(issues: readonly Issue[], nameOf: (name: string) => string): string {
  const [first] = issues;
  if (first === undefined) return 'invalid';
  const { message, path } = innermost(first);
  const what = placeOf([...first.path, ...path], nameOf);
  return what === '' ? message : `${what}: ${message}`;
}

function placeOf(path: readonly PropertyKey[], nameOf: (name: string) => string): string {
  const place = path.map((part) => (typeof part === 'number' ? `[${part}]` : `.${nameOf(String(part))}`));
  return place.join('').replace(/^\./, '');
}

/** The message and place of an issue. For a union of forms, the form that matched furthest is the intended one. */
function innermost(issue: Issue): { readonly message: string; readonly path: readonly PropertyKey[] } {
  if (issue.code !== 'invalid_union') return { message: wordsOf(issue), path: [] };
  const found = issue.errors.flatMap(([first]) => {
    if (first === undefined) return [];
    const { message, path } = innermost(first);
    return message === genericMessage ? [] : [{ message, path: [...first.path, ...path] }];
  });
  const [best] = found.sort((a, b) => b.path.length - a.path.length);
  return best === undefined || best.path.length === 0 ? { message: issue.message, path: [] } : best;
}

/** The validator's own messages in our words; messages written for an option stay. */
function wordsOf(issue: Issue): string {
  return issue.message === genericMessage || issue.message.startsWith('expected ')
    ? issue.message
    : requirementOf(issue);
}

/** The value as text, without user names and passwords in addresses. */
function shownValue(value: unknown): string {
  const isShort = typeof value !== 'object' || value === null || isPlainList(value);
  return (isShort ? String(value) : JSON.stringify(value)).replace(/:\/\/[^/\s]*@/g, '://');
}

function isPlainList(value: unknown): boolean {
  return Array.isArray(value) && value.length > 0 && value.every((each) => typeof each !== 'object');
}
