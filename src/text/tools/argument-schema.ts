// Types of arguments that a model writes as plain text, by the JSON Schema of their tool.

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The schema of one argument; undefined if the tool's schema does not have it. */
export function propertySchema(schema: unknown, key: string): unknown {
  const properties = isObject(schema) ? schema.properties : undefined;
  return isObject(properties) && Object.hasOwn(properties, key) ? properties[key] : undefined;
}

/** The arguments that a tool's schema describes, in its order. */
export function propertyNames(schema: unknown): readonly string[] {
  const properties = isObject(schema) ? schema.properties : undefined;
  return isObject(properties) ? Object.keys(properties) : [];
}

/** The types that a schema allows; undefined: any. */
function typesOf(schema: unknown): ReadonlySet<string> | undefined {
  if (!isObject(schema)) return undefined;
  const { type, enum: values, const: only, anyOf, oneOf } = schema;
  if (typeof type === 'string') return new Set([type]);
  if (Array.isArray(type)) return new Set(type.map(String));
  if (Array.isArray(values)) return new Set(values.map(typeOf));
  if (only !== undefined) return new Set([typeOf(only)]);
  const options = Array.isArray(anyOf) ? anyOf : oneOf;
  if (!Array.isArray(options)) return undefined;
  const types = options.map(typesOf);
  return types.every((each) => each !== undefined) ? new Set(types.flatMap((each) => [...each])) : undefined;
}

function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return typeof value;
}

export function isTextOnly(schema: unknown): boolean {
  const types = typesOf(schema);
  return types?.size === 1 && types.has('string');
}

/** The JSON of an argument that is written as `text`: itself where the schema allows its type, else a JSON string. */
export function typedValue(text: string, schema: unknown): string {
  const types = typesOf(schema);
  const plain = pythonWords.get(text.trim()) ?? text.trim();
  try {
    const type = typeOf(JSON.parse(plain));
    const isAllowed = types === undefined || types.has(type) || (type === 'number' && types.has('integer'));
    if (type !== 'string' && isAllowed) return plain;
  } catch {
    // Text that is no JSON is a text.
  }
  return JSON.stringify(text);
}

/** Templates that write values with Python's `str` show models these words. */
const pythonWords: ReadonlyMap<string, string> = new Map([
  ['True', 'true'],
  ['False', 'false'],
  ['None', 'null'],
]);
