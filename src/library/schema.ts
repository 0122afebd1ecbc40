// Schemas of outputs and of tool arguments: zod, any other Standard Schema, or JSON Schema, and the types they describe.
import { z } from 'zod';
import { InvalidRequestError, OutputError } from './errors.ts';

/** The interface of zod, valibot, arktype and others (https://standardschema.dev). */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

/** A validated value, or the issues that refuse it. */
export type StandardResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[] };

/** A JSON schema. Written in the call, or with `as const`, it types its values. */
export interface JsonSchema {
  readonly [keyword: string]: unknown;
}

/** What describes an output: a zod schema, another Standard Schema, or a JSON schema. */
export type Schema = StandardSchema | JsonSchema;

/** The type of the values of a schema. */
export type Infer<S> = S extends { readonly '~standard': { readonly types?: infer T } }
  ? NonNullable<T> extends { readonly output: infer Output }
    ? Output
    : unknown
  : FromJsonSchema<S>;

/** The type that a JSON schema describes, as far as its types, properties, items, enums and unions state it. */
export type FromJsonSchema<S> = S extends { readonly const: infer C }
  ? C
  : S extends { readonly enum: readonly (infer E)[] }
    ? E
    : S extends { readonly anyOf: readonly (infer A)[] }
      ? FromJsonSchema<A>
      : S extends { readonly oneOf: readonly (infer A)[] }
        ? FromJsonSchema<A>
        : S extends { readonly type: readonly (infer T)[] }
          ? OfType<T, S>
          : S extends { readonly type: infer T }
            ? OfType<T, S>
            : unknown;

type OfType<T, S> = T extends 'string'
  ? string
  : T extends 'number' | 'integer'
    ? number
    : T extends 'boolean'
      ? boolean
      : T extends 'null'
        ? null
        : T extends 'array'
          ? S extends { readonly items: infer I }
            ? FromJsonSchema<I>[]
            : unknown[]
          : T extends 'object'
            ? S extends { readonly properties: infer P }
              ? ObjectOf<P, S extends { readonly required: readonly (infer R)[] } ? R : never>
              : Record<string, unknown>
            : unknown;

type ObjectOf<P, Required> = { -readonly [K in keyof P as K extends Required ? K : never]: FromJsonSchema<P[K]> } & {
  -readonly [K in keyof P as K extends Required ? never : K]?: FromJsonSchema<P[K]>;
};

function isStandard(schema: Schema): schema is StandardSchema {
  return '~standard' in schema;
}

/** The JSON schema of the values before any transformation. @throws InvalidRequestError if it has none */
export function jsonSchemaOf(schema: Schema): object {
  if (!isStandard(schema)) return schema;
  const { vendor } = schema['~standard'];
  // Standard JSON Schema, which newer versions of the libraries implement.
  const { jsonSchema } = schema['~standard'] as { jsonSchema?: { input(options: { target: string }): object } };
  try {
    if (jsonSchema !== undefined) return jsonSchema.input({ target: 'draft-2020-12' });
    if (vendor === 'zod') return z.toJSONSchema(schema as unknown as z.ZodType, { io: 'input' });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new InvalidRequestError('invalid_value', `Cannot use schema: ${why}`, 'schema', { cause: error });
  }
  throw new InvalidRequestError('invalid_value', `Cannot use schema: ${vendor} gives no JSON schema for it`, 'schema');
}

/** The value of a JSON text, validated. @throws OutputError if it is none */
export async function parseOutput<S extends Schema>(schema: S, text: string): Promise<Infer<S>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new OutputError('invalid_output', 'Cannot read output: it is not JSON', text, { cause: error });
  }
  if (!isStandard(schema)) return value as Infer<S>;
  const result = await schema['~standard'].validate(value);
  if (result.issues === undefined) return result.value as Infer<S>;
  const [first] = result.issues;
  const path = (first?.path ?? []).map((key) => String(isKeyed(key) ? key.key : key)).join('.');
  const place = path === '' ? '' : `'${path}': `;
  throw new OutputError('invalid_output', `Cannot accept output: ${place}${first?.message ?? 'invalid'}`, text);
}

function isKeyed(part: unknown): part is { readonly key: PropertyKey } {
  return typeof part === 'object' && part !== null && 'key' in part;
}
