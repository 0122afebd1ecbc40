// The check of a JSON schema before it is compiled: keywords that a grammar cannot enforce are refused at their place.

/** What a schema lacks, and where: a path such as `.properties.age`. */
export interface SchemaFault {
  readonly path: string;
  readonly reason: string;
}

/** Keywords with a meaning that no grammar expresses; the value with no effect is accepted. */
const unsupported: ReadonlyMap<string, (value: unknown) => boolean> = new Map([
  ...['multipleOf', 'contains', 'minContains', 'maxContains', 'not', 'if', 'then', 'else'].map(refused),
  ...['$dynamicRef', '$recursiveRef'].map(refused),
  ['uniqueItems', (value) => value === false],
  ['dependentRequired', isEmptyObject],
  ['dependentSchemas', isEmptyObject],
  ['dependencies', isEmptyObject],
  ['allOf', (value) => Array.isArray(value) && value.length <= 1],
]);

function refused(keyword: string): [string, () => boolean] {
  return [keyword, () => false];
}

const typeNames = new Set(['string', 'number', 'integer', 'boolean', 'null', 'array', 'object']);
/** Keywords with a schema, a list of schemas, or an object of schemas. */
const withSchema = ['items', 'additionalProperties', 'unevaluatedProperties', 'unevaluatedItems', 'propertyNames'];
const withList = ['anyOf', 'oneOf', 'allOf', 'prefixItems'];
const withMembers = ['properties', 'patternProperties', '$defs', 'definitions'];

/** The first fault of a schema; undefined: it can be compiled, as far as can be told without a compiler. */
export function faultOfSchema(root: unknown): SchemaFault | undefined {
  const open: { readonly schema: unknown; readonly path: string }[] = [{ schema: root, path: '' }];
  for (let at = open.shift(); at !== undefined; at = open.shift()) {
    const fault = ownFault(at.schema, root);
    if (fault !== undefined) return { path: at.path + fault.path, reason: fault.reason };
    open.push(...innerSchemas(at.schema as object | boolean, at.path));
  }
  return undefined;
}

function ownFault(schema: unknown, root: unknown): SchemaFault | undefined {
  if (typeof schema === 'boolean') return undefined;
  if (!isObject(schema)) return { path: '', reason: 'must be a JSON schema: an object or a boolean' };
  for (const [keyword, value] of Object.entries(schema)) {
    if (unsupported.get(keyword)?.(value) === false)
      return { path: `.${keyword}`, reason: 'is a keyword of JSON Schema that is not supported' };
  }
  return typeFault(schema) ?? enumFault(schema) ?? referenceFault(schema, root) ?? shapeFault(schema);
}

function typeFault({ type }: Readonly<Record<string, unknown>>): SchemaFault | undefined {
  if (type === undefined) return undefined;
  const names = Array.isArray(type) ? type : [type];
  if (names.length > 0 && names.every((name) => typeNames.has(name))) return undefined;
  return { path: '.type', reason: `must be one of ${[...typeNames].join(', ')}, or a list of them` };
}

function enumFault({ enum: values }: Readonly<Record<string, unknown>>): SchemaFault | undefined {
  if (values === undefined || (Array.isArray(values) && values.length > 0)) return undefined;
  return { path: '.enum', reason: 'must be a list of at least one value' };
}

function referenceFault({ $ref: ref }: Readonly<Record<string, unknown>>, root: unknown): SchemaFault | undefined {
  if (ref === undefined) return undefined;
  const path = '.$ref';
  if (typeof ref !== 'string' || !ref.startsWith('#'))
    return { path, reason: "must point into the schema itself: '#/$defs/name'" };
  const target = ref
    .slice(1)
    .split('/')
    .slice(1)
    .reduce<unknown>(
      (at, step) => (isObject(at) ? at[step.replaceAll('~1', '/').replaceAll('~0', '~')] : undefined),
      root,
    );
  return target === undefined ? { path, reason: `points to '${ref.slice(0, 64)}', which the schema lacks` } : undefined;
}

function shapeFault(schema: Readonly<Record<string, unknown>>): SchemaFault | undefined {
  for (const keyword of withList)
    if (schema[keyword] !== undefined && !Array.isArray(schema[keyword]))
      return { path: `.${keyword}`, reason: 'must be a list of schemas' };
  for (const keyword of withMembers)
    if (schema[keyword] !== undefined && !isObject(schema[keyword]))
      return { path: `.${keyword}`, reason: 'must be an object of schemas' };
  // XGrammar does not escape names in the JSON that it accepts.
  if (Object.keys(schema.properties ?? {}).some((name) => /["\\\p{Cc}]/u.test(name)))
    return { path: '.properties', reason: 'has a name with a quote, a backslash or a control character' };
  const { required } = schema;
  if (required !== undefined && !(Array.isArray(required) && required.every((name) => typeof name === 'string')))
    return { path: '.required', reason: 'must be a list of names' };
  return undefined;
}

function innerSchemas(schema: object | boolean, path: string) {
  if (typeof schema === 'boolean') return [];
  const members = schema as Readonly<Record<string, unknown>>;
  const inner: { readonly schema: unknown; readonly path: string }[] = [];
  for (const keyword of withSchema)
    if (members[keyword] !== undefined) inner.push({ schema: members[keyword], path: `${path}.${keyword}` });
  for (const keyword of [...withList, ...withMembers])
    for (const [name, each] of Object.entries(members[keyword] ?? {}))
      inner.push({ schema: each, path: `${path}.${keyword}.${name.slice(0, 64)}` });
  return inner;
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isEmptyObject(value: unknown): boolean {
  return isObject(value) && Object.keys(value).length === 0;
}
