// The grammar of a request: from `response_format` or `structured_outputs`, checked and compiled before the request is submitted.
import { z } from 'zod';
import {
  type Grammar,
  type GrammarCompiler,
  GrammarQueueFull,
  grammarCharactersMax,
} from '../../core/protocol/grammar.ts';
import { ApiError, badField } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import type { Caller } from '../keys/caller.ts';
import { faultOfSchema } from './json-schema.ts';

const schemaObject = z.custom<object | boolean>(
  (value) => typeof value === 'boolean' || (typeof value === 'object' && value !== null && !Array.isArray(value)),
  'expected a JSON schema',
);
const grammarText = z.string().min(1).max(grammarCharactersMax);
const choicesMax = 4096;
const nameCharactersMax = 64;

const formats = [
  z.strictObject({ type: z.literal('text') }),
  z.strictObject({ type: z.literal('json_object') }),
  z.strictObject({
    type: z.literal('json_schema'),
    json_schema: z.strictObject({
      name: z
        .string()
        .max(nameCharactersMax)
        .regex(/^[\w-]+$/, 'must be letters, digits, _ and -'),
      description: z.string().nullish(),
      schema: schemaObject,
      strict: z.boolean().nullish(),
    }),
  }),
] as const;

/** OpenAI's field. `strict` changes nothing: the output always follows the schema. */
export const responseFormat = z.discriminatedUnion(
  'type',
  formats,
  'must have the type text, json_object or json_schema',
);

/** vLLM's field: exactly one member. */
export const structuredOutputs = z.strictObject({
  json: z.union([schemaObject, grammarText], 'expected a JSON schema, or its text').nullish(),
  regex: grammarText.nullish(),
  choice: z.array(z.string().min(1)).min(1).max(choicesMax).nullish(),
  grammar: grammarText.nullish(),
  json_object: z.literal(true).nullish(),
  structural_tag: grammarText.nullish(),
});

interface GrammarFields {
  readonly response_format?: z.infer<typeof responseFormat> | undefined;
  readonly structured_outputs?: z.infer<typeof structuredOutputs> | undefined;
  readonly ignore_eos?: boolean | undefined;
}

/** A grammar, and the field that states it. */
interface StatedGrammar {
  readonly field: string;
  readonly grammar: Grammar;
}

/** Any JSON object. */
const anyObject: Grammar = { kind: 'json_schema', text: '{"type":"object"}' };

/**
 * The grammar of the output, compiled; undefined: the output is free.
 * @param compiler undefined: this server compiles no grammars
 * @throws ApiError 400 naming the field and the place
 */
export async function requestGrammar(
  body: GrammarFields,
  model: ServedModel,
  compiler: GrammarCompiler | undefined,
): Promise<Grammar | undefined> {
  const stated = statedGrammar(body);
  if (stated === undefined) return undefined;
  const { field, grammar } = stated;
  if (body.ignore_eos === true)
    throw badField(
      'ignore_eos',
      `Cannot accept request: 'ignore_eos' is true and '${field}' constrains the output, which ends where its grammar ends: send one of them`,
    );
  await checkGrammar(field, grammar, model, compiler);
  return grammar;
}

/** The compiler for the requests of a tenant. */
export function compilerFor(
  compiler: GrammarCompiler | undefined,
  { name }: Pick<Caller, 'name'>,
): GrammarCompiler | undefined {
  return compiler && { compile: (grammar) => compiler.compile(grammar, name) };
}

/**
 * Compiles a grammar that `field` states.
 * @param compiler undefined: this server compiles no grammars
 * @throws ApiError 400 naming the field and the place, 503 if too many grammars wait
 */
export async function checkGrammar(
  field: string,
  grammar: Grammar,
  model: ServedModel,
  compiler: GrammarCompiler | undefined,
): Promise<void> {
  const refused = (why: string): Error => badField(field, `Cannot accept request: '${field}' ${why}`);
  if (model.tokenizer === undefined || model.eosIds.length === 0) {
    const lacks = model.tokenizer === undefined ? 'tokenizer' : 'end-of-sequence token';
    throw refused(`constrains the output, which needs a model with a ${lacks}: '${model.id}' has none`);
  }
  if (compiler === undefined) throw refused('is not supported by this server');
  if (grammar.text.length > grammarCharactersMax)
    throw refused(`is too long: ${grammar.text.length} characters, at most ${grammarCharactersMax} are compiled`);
  if (grammar.kind === 'json_schema') {
    const fault = faultOfSchema(JSON.parse(grammar.text));
    if (fault !== undefined) throw badField(field, `Cannot accept request: '${field}${fault.path}' ${fault.reason}`);
  }
  const reason = await compiler.compile(grammar).catch((error: unknown) => {
    if (!(error instanceof GrammarQueueFull)) throw error;
    const { message, retryAfterMs } = error;
    throw new ApiError(503, `Cannot accept request: '${field}' cannot be compiled now: ${message}: retry later`, {
      ...{ code: 'grammar_queue_full', param: field, retryAfterMs },
    });
  });
  if (reason !== undefined) throw refused(`cannot be compiled: ${reason}`);
}

function statedGrammar({ response_format: format, structured_outputs: outputs }: GrammarFields) {
  const fromFormat = format && grammarOfFormat(format);
  const fromOutputs = outputs && grammarOfOutputs(outputs);
  if (fromFormat !== undefined && fromOutputs !== undefined)
    throw badField(
      'structured_outputs',
      `Cannot accept request: '${fromFormat.field}' and '${fromOutputs.field}' both constrain the output: send one of them`,
    );
  return fromFormat ?? fromOutputs;
}

function grammarOfFormat(format: z.infer<typeof responseFormat>): StatedGrammar | undefined {
  if (format.type === 'text') return undefined;
  if (format.type === 'json_object') return { field: 'response_format', grammar: anyObject };
  return { field: 'response_format.json_schema.schema', grammar: jsonSchema(format.json_schema.schema) };
}

function grammarOfOutputs(outputs: z.infer<typeof structuredOutputs>): StatedGrammar {
  const given = Object.entries(outputs).filter(([, value]) => value !== null && value !== undefined);
  const [first] = given;
  if (first === undefined || given.length > 1) {
    const names = given.map(([name]) => name).join(', ') || 'none';
    throw badField(
      'structured_outputs',
      `Cannot accept request: 'structured_outputs' must have exactly one of json, json_object, regex, choice, grammar and structural_tag, got ${names}`,
    );
  }
  const field = `structured_outputs.${first[0]}`;
  const { json, regex, choice, grammar, structural_tag: tag } = outputs;
  if (json !== undefined && json !== null)
    return { field, grammar: jsonSchema(typeof json === 'string' ? parsed(json, field) : json) };
  if (typeof regex === 'string') return { field, grammar: { kind: 'regex', text: regex } };
  if (typeof grammar === 'string') return { field, grammar: { kind: 'ebnf', text: grammar } };
  if (typeof tag === 'string')
    return { field, grammar: { kind: 'structural_tag', text: JSON.stringify(parsed(tag, field)) } };
  if (choice !== undefined && choice !== null)
    return { field, grammar: { kind: 'ebnf', text: `root ::= ${choice.map(ebnfString).join(' | ')}` } };
  return { field, grammar: anyObject };
}

function jsonSchema(schema: unknown): Grammar {
  return { kind: 'json_schema', text: JSON.stringify(schema) };
}

/** @throws ApiError 400 */
function parsed(text: string, field: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw badField(field, `Cannot accept request: '${field}' is no JSON: ${why.slice(0, 200)}`);
  }
}

/** A literal in EBNF. */
export function ebnfString(text: string): string {
  const escaped = (c: string): string => {
    if (c === '"' || c === '\\') return `\\${c}`;
    return c < ' ' || c === '\x7f' ? `\\x${c.charCodeAt(0).toString(16).padStart(2, '0')}` : c;
  };
  return `"${Array.from(text, escaped).join('')}"`;
}
