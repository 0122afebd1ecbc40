// Validation of request bodies: nothing is ignored silently; a field we cannot serve is a 400 that names it unless it asks for nothing.
import type { z } from 'zod';
import { badField } from './errors.ts';

const isEmptyList = (value: unknown): boolean => Array.isArray(value) && value.length === 0;
const isFalse = (value: unknown): boolean => value === false;
const anything = (): boolean => true;
const oneOf =
  (...allowed: unknown[]) =>
  (value: unknown): boolean =>
    allowed.includes(value);

/** Known fields we do not serve, each with what is harmless in it: it asks for nothing, or only informs. */
const unsupported: Readonly<Record<string, (value: unknown) => boolean>> = {
  user: anything,
  metadata: anything,
  safety_identifier: anything,
  prompt_cache_key: anything,
  prompt_cache_retention: anything,
  store: isFalse,
  tools: isEmptyList,
  functions: isEmptyList,
  tool_choice: oneOf('none', 'auto'),
  function_call: oneOf('none', 'auto'),
  parallel_tool_calls: anything,
  response_format: (value) => isTextFormat(value),
  modalities: (value) => Array.isArray(value) && value.every((entry) => entry === 'text'),
  service_tier: oneOf('auto', 'default'),
  verbosity: oneOf('medium'),
  suffix: oneOf(''),
  best_of: oneOf(1),
};

function isTextFormat(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  return 'type' in value && value.type === 'text';
}

/**
 * The body as the schema types it.
 * @throws ApiError 400 naming the first field at fault
 */
export function parseBody<S extends z.ZodObject>(schema: S, body: unknown): z.infer<S> {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw badField(undefined, 'Cannot read request: the body is not a JSON object');
  }
  const known: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(body)) {
    if (value === null) continue;
    if (Object.hasOwn(schema.shape, name)) known[name] = dropNulls(value);
    else checkUnsupported(name, value);
  }
  const parsed = schema.safeParse(known);
  if (parsed.success) return parsed.data;
  throw describeIssue(parsed.error.issues[0], known);
}

/** Clients send optional members of nested objects as null. */
function dropNulls(value: unknown): unknown {
  if (Array.isArray(value)) return typeof value[0] === 'object' ? value.map(dropNulls) : value;
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, member]) => member !== null)
      .map(([name, member]) => [name, dropNulls(member)]),
  );
}

function checkUnsupported(name: string, value: unknown): void {
  const harmless = Object.hasOwn(unsupported, name) ? unsupported[name] : undefined;
  if (harmless === undefined) {
    throw badField(name, `Cannot accept request: unknown field '${name.slice(0, 64)}'`, 'unknown_parameter');
  }
  if (!harmless(value)) {
    throw badField(
      name,
      `Cannot accept request: '${name}' is not supported yet: ${JSON.stringify(value).slice(0, 80)}`,
      'unsupported_parameter',
    );
  }
}

function describeIssue(issue: z.core.$ZodIssue | undefined, body: Record<string, unknown>): Error {
  const path = issue?.path.map(String) ?? [];
  const field = path.length > 0 ? path.join('.') : undefined;
  const value = path.reduce<unknown>(
    (at, key) => (typeof at === 'object' && at !== null ? Reflect.get(at, key) : undefined),
    body,
  );
  const shown = value === undefined ? 'missing' : `got ${JSON.stringify(value).slice(0, 80)}`;
  return badField(field, `Cannot accept request: '${field ?? 'body'}': ${issue?.message ?? 'invalid'}: ${shown}`);
}
