// Validation of request bodies: an unsupported field is a 400 that names it, unless its value has no effect.
import type { z } from 'zod';
import { badField } from '../http/errors.ts';
import { requirementOf } from '../http/requirement.ts';

/** Deeper than any useful body; the recursion below relies on it. */
const depthMax = 32;

const isEmptyList = (value: unknown): boolean => Array.isArray(value) && value.length === 0;
export const anything = (): boolean => true;
export const oneOf =
  (...allowed: unknown[]) =>
  (value: unknown): boolean =>
    allowed.includes(value);

/** The fields of a protocol outside its schema. */
export interface Dialect {
  /** Known unsupported fields, each with its harmless values: those without effect. */
  readonly unsupported: Readonly<Record<string, (value: unknown) => boolean>>;
  /** Fields in which a null is a value. */
  readonly keepsNulls: ReadonlySet<string>;
}

const unsupported: Dialect['unsupported'] = {
  user: anything,
  metadata: anything,
  safety_identifier: anything,
  prompt_cache_key: anything,
  prompt_cache_retention: anything,
  store: oneOf(false),
  tools: isEmptyList,
  functions: isEmptyList,
  tool_choice: oneOf('none', 'auto'),
  function_call: oneOf('none', 'auto'),
  parallel_tool_calls: anything,
  modalities: (value) => Array.isArray(value) && value.every((entry) => entry === 'text'),
  service_tier: oneOf('auto', 'default'),
  verbosity: oneOf('medium'),
  suffix: oneOf(''),
  best_of: oneOf(1),
  cache_control: anything,
  // The prefix cache always applies.
  cache_prompt: anything,
  // Fields of vLLM, which its clients send with their defaults.
  use_beam_search: oneOf(false),
  length_penalty: oneOf(1),
  spaces_between_special_tokens: oneOf(true),
  include_stop_str_in_output: oneOf(false),
  add_generation_prompt: oneOf(true),
  continue_final_message: oneOf(false),
};

/** Fields with JSON schemas. */
const keepsNulls: Dialect['keepsNulls'] = new Set(['response_format', 'structured_outputs', 'tools']);

const openAi: Dialect = { unsupported, keepsNulls };

/** What happens to fields without a meaning here: a 400, or nothing. Unsupported fields with an effect are a 400. */
export type UnknownFields = 'refuse' | 'ignore';

/**
 * The body, typed by the schema.
 * @throws ApiError 400 naming the first invalid field
 */
export function parseBody<S extends z.ZodObject>(
  schema: S,
  body: unknown,
  { unknownFields = 'refuse' }: { readonly unknownFields?: UnknownFields | undefined } = {},
  dialect: Dialect = openAi,
): z.infer<S> {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw badField(undefined, 'Cannot read request: the body is not a JSON object');
  }
  const known: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(body)) {
    if (value === null) continue;
    checkNesting(name, value);
    if (Object.hasOwn(schema.shape, name)) known[name] = dialect.keepsNulls.has(name) ? value : dropNulls(value);
    else if (unknownFields === 'refuse' || Object.hasOwn(dialect.unsupported, name))
      checkUnsupported(name, value, dialect);
  }
  const parsed = schema.safeParse(known);
  if (parsed.success) return parsed.data;
  throw describeIssue(parsed.error.issues[0], known);
}

/** @throws ApiError 400 for bodies nested too deeply, or with a member named `__proto__` */
function checkNesting(field: string, value: unknown): void {
  let level: unknown[] = [value];
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > depthMax) {
      throw badField(
        field,
        `Cannot accept request: '${clip(field)}' is nested too deeply: more than ${depthMax} levels`,
      );
    }
    const inner: unknown[] = [];
    for (const at of level) {
      if (typeof at !== 'object' || at === null) continue;
      if (Object.hasOwn(at, '__proto__')) {
        throw badField(
          field,
          `Cannot accept request: unknown field '__proto__' in '${clip(field)}'`,
          'unknown_parameter',
        );
      }
      for (const member of Array.isArray(at) ? at : Object.values(at))
        if (typeof member === 'object' && member !== null) inner.push(member);
    }
    level = inner;
  }
}

/** Removes nulls: clients send optional members of nested objects as null. */
function dropNulls(value: unknown): unknown {
  if (Array.isArray(value)) return typeof value[0] === 'object' ? value.map(dropNulls) : value;
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, member]) => member !== null)
      .map(([name, member]) => [name, dropNulls(member)]),
  );
}

function checkUnsupported(name: string, value: unknown, { unsupported }: Dialect): void {
  const harmless = Object.hasOwn(unsupported, name) ? unsupported[name] : undefined;
  if (harmless === undefined) {
    throw badField(name, `Cannot accept request: unknown field '${clip(name)}'`, 'unknown_parameter');
  }
  if (!harmless(value)) {
    throw badField(
      name,
      `Cannot accept request: '${name}' is not supported yet: got ${brief(value)}`,
      'unsupported_parameter',
    );
  }
}

/** For a union of shapes, the issue of the shape that matched furthest. */
function mostSpecific(issue: z.core.$ZodIssue): z.core.$ZodIssue {
  if (issue.code !== 'invalid_union') return issue;
  const inner = issue.errors.flatMap(([first]) => (first === undefined ? [] : [mostSpecific(first)]));
  const deepest = inner.reduce<z.core.$ZodIssue | undefined>(
    (best, next) => (next.path.length > (best?.path.length ?? 0) ? next : best),
    undefined,
  );
  return deepest === undefined ? issue : { ...deepest, path: [...issue.path, ...deepest.path] };
}

function describeIssue(first: z.core.$ZodIssue | undefined, body: Record<string, unknown>): Error {
  const issue = first && mostSpecific(first);
  const path = issue?.path.map(String) ?? [];
  const field = path.length > 0 ? path.join('.') : undefined;
  const value = path.reduce<unknown>(
    (at, key) => (typeof at === 'object' && at !== null ? Reflect.get(at, key) : undefined),
    body,
  );
  const requirement = issue === undefined ? 'has an invalid form' : requirementOf(issue);
  const fault = value === undefined ? 'is missing' : `${requirement}, got ${brief(value)}`;
  return badField(field, `Cannot accept request: '${clip(field ?? 'body')}' ${fault}`);
}

function clip(text: string): string {
  return text.length > 64 ? `${text.slice(0, 64)}...` : text;
}

/** A value for an error message, cut to a bounded length. */
function brief(value: unknown): string {
  if (typeof value === 'string')
    return value.length > 64 ? `a string of ${value.length} characters` : JSON.stringify(value);
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (typeof value === 'object' && value !== null)
    return `an object with ${clip(Object.keys(value).join(', ')) || 'nothing'}`;
  return String(value);
}
