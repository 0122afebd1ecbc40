// The grammar of an output with tool calls or reasoning, as a structural tag of XGrammar: text with parts of a fixed form.

import { isTextOnly, propertySchema } from './argument-schema.ts';
import { type CallFormat, markerOf, type PairsShape, type ReasoningFormat } from './call-format.ts';
import type { Tool } from './tool.ts';

/** A part of a structural tag. */
export type TagFormat =
  | { readonly type: 'const_string'; readonly value: string }
  | { readonly type: 'json_schema'; readonly json_schema: unknown }
  | { readonly type: 'regex'; readonly pattern: string }
  | { readonly type: 'grammar'; readonly grammar: string }
  | { readonly type: 'any_text' }
  | { readonly type: 'sequence' | 'or'; readonly elements: readonly TagFormat[] }
  | Tag
  | {
      readonly type: 'triggered_tags';
      readonly triggers: readonly string[];
      readonly tags: readonly Tag[];
      readonly at_least_one: boolean;
      readonly stop_after_first: boolean;
    }
  | {
      readonly type: 'tags_with_separator';
      readonly tags: readonly Tag[];
      readonly separator: string;
      readonly at_least_one: boolean;
      readonly stop_after_first: boolean;
    };

interface Tag {
  readonly type: 'tag';
  readonly begin: string;
  readonly content: TagFormat;
  readonly end: string;
}

export interface CallGrammarOptions {
  readonly format: CallFormat;
  /** Tools that may be called; their parameters are schemas that a grammar can express. */
  readonly tools: readonly Tool[];
  /** Calls may come in free text; else the output is calls from its beginning on. */
  readonly isInText: boolean;
  readonly isParallel: boolean;
}

/** White space between parts: some models would write it without end. */
const space: TagFormat = { type: 'regex', pattern: '\\s{0,4}' };

/** The format of a structural tag. */
export function callGrammar(options: CallGrammarOptions): TagFormat {
  return options.isInText ? callsInText(options) : section(options);
}

/** The format after the reasoning, which may be missing unless the prompt has begun it. */
export function grammarAfterReasoning(
  format: TagFormat,
  { open, close }: ReasoningFormat,
  hasBegun: boolean,
): TagFormat {
  const reasoning: Tag = { type: 'tag', begin: hasBegun ? '' : open, content: { type: 'any_text' }, end: close };
  const after: TagFormat = { type: 'sequence', elements: [reasoning, space, format] };
  return hasBegun ? after : { type: 'or', elements: [format, after] };
}

function callsInText(options: CallGrammarOptions): TagFormat {
  const { format, tools, isParallel } = options;
  const marker = markerOf(format) || (format.shape.kind === 'json' ? format.shape.open.trim() : '');
  const isOneSection = format.sectionOpen.trim() !== '';
  if (format.shape.kind === 'python' && isOneSection) return pythonSections(options);
  const tags = isOneSection ? [sectionTag(options)] : tools.map((tool) => callTag(format, tool));
  return {
    type: 'triggered_tags',
    triggers: [marker],
    tags: tags.map(withoutSpace),
    at_least_one: false,
    stop_after_first: !isParallel,
  };
}

/** Lists of one Python call in text, where a bracket alone begins none. XGrammar cannot continue such a list. */
function pythonSections({ format, tools, isParallel }: CallGrammarOptions): TagFormat {
  const { sectionOpen, sectionClose } = format;
  const tags = tools.map((tool): Tag => {
    const { begin, content, end } = callTag(format, tool);
    return { type: 'tag', begin: (sectionOpen + begin).trimStart(), content, end: end + sectionClose };
  });
  const triggers = tags.map(({ begin }) => begin);
  return { type: 'triggered_tags', triggers, tags, at_least_one: false, stop_after_first: !isParallel };
}

/** All calls of an output. */
function section(options: CallGrammarOptions): TagFormat {
  if (options.format.sectionOpen.trim() !== '') return sectionTag(options);
  const { format, tools, isParallel } = options;
  if (!isParallel || !format.isParallel) return either(tools.map((tool) => withoutSpace(callTag(format, tool))));
  if (format.separator !== '') {
    const list = callList(options);
    return { ...list, tags: list.tags.map(withoutSpace) };
  }
  return listByMarkers(options, format.callOpen.trimStart());
}

/** Calls without a separator, which a list needs: the opening marker of the next call is one. */
function listByMarkers(options: CallGrammarOptions, begin: string): TagFormat {
  const { format } = options;
  const rest = callList({ ...options, format: { ...format, callOpen: '', separator: format.callOpen } });
  return { type: 'sequence', elements: [{ type: 'const_string', value: begin }, rest] };
}

const withoutSpace = (tag: Tag): Tag => ({ ...tag, begin: tag.begin.trimStart() });

/** One of several formats. */
function either(elements: readonly TagFormat[]): TagFormat {
  const [first] = elements;
  return elements.length === 1 && first !== undefined ? first : { type: 'or', elements };
}

const nothing: TagFormat = { type: 'grammar', grammar: 'root ::= ""' };
const optional = (element: TagFormat): TagFormat => either([element, nothing]);

function sectionTag(options: CallGrammarOptions): Tag {
  const { sectionOpen, sectionClose, shape } = options.format;
  const [open, close] = shape.kind === 'json' && shape.isList ? ['[', ']'] : ['', ''];
  return {
    type: 'tag',
    begin: sectionOpen.trimStart() + open,
    content: options.format.separator === '' ? listByMarkers(options, options.format.callOpen) : callList(options),
    end: close + sectionClose.trimEnd(),
  };
}

function callList({ format, tools, isParallel }: Pick<CallGrammarOptions, 'format' | 'tools' | 'isParallel'>) {
  return {
    type: 'tags_with_separator' as const,
    tags: tools.map((tool) => callTag(format, tool)),
    separator: format.separator,
    at_least_one: true,
    stop_after_first: !isParallel || !format.isParallel,
  };
}

function callTag({ callOpen, callClose, shape }: CallFormat, tool: Tool): Tag {
  const { name, parameters = { type: 'object', properties: {} } } = tool;
  const schema: TagFormat = { type: 'json_schema', json_schema: parameters };
  switch (shape.kind) {
    case 'json': {
      const begin = callOpen + shape.open + name + shape.middle;
      if (shape.idAt === undefined) return { type: 'tag', begin, content: schema, end: shape.end + callClose };
      const id: TagFormat = { type: 'regex', pattern: '[a-zA-Z0-9]{9}' };
      const before: TagFormat = { type: 'const_string', value: shape.end.slice(0, shape.idAt) };
      const content: TagFormat = { type: 'sequence', elements: [schema, before, id] };
      return { type: 'tag', begin, content, end: shape.end.slice(shape.idAt) + callClose };
    }
    case 'named': {
      if (shape.idOpen === undefined)
        return { type: 'tag', begin: callOpen + name + shape.nameEnd, content: schema, end: callClose };
      // An id that follows the name is its number.
      const pattern = shape.idOpen.trim() === ':' ? '[0-9]{1,4}' : '[a-zA-Z0-9]{9}';
      const id: TagFormat = { type: 'regex', pattern };
      const after: TagFormat = { type: 'const_string', value: shape.nameEnd };
      const content: TagFormat = { type: 'sequence', elements: [id, after, schema] };
      return { type: 'tag', begin: callOpen + name + shape.idOpen, content, end: callClose };
    }
    case 'python':
      return {
        ...{ type: 'tag', begin: `${callOpen}${name}(`, end: `)${callClose}` },
        content: namedArguments(parameters, 0, false),
      };
    case 'pairs':
      return { type: 'tag', begin: callOpen + name + shape.nameEnd, content: pairs(shape, parameters), end: callClose };
  }
}

/** Python's named arguments from `from` on, in the order of the schema. @param follows another is before them */
function namedArguments(parameters: NonNullable<Tool['parameters']>, from: number, follows: boolean): TagFormat {
  const { properties = {}, required, $defs, definitions } = parameters;
  const key = Object.keys(properties as object)[from];
  if (key === undefined) return nothing;
  const schema = propertySchema(parameters, key);
  const isFlag = (schema as { type?: unknown } | undefined)?.type === 'boolean';
  const flags = ['True', 'False'].map((value): TagFormat => ({ type: 'const_string', value }));
  const whole = typeof schema === 'object' ? { $defs, definitions, ...schema } : schema;
  const value: TagFormat = isFlag ? either(flags) : { type: 'json_schema', json_schema: whole };
  const name: TagFormat = { type: 'const_string', value: `${follows ? ', ' : ''}${key}=` };
  const rest = (isAfter: boolean): readonly TagFormat[] =>
    from + 1 < Object.keys(properties as object).length ? [namedArguments(parameters, from + 1, isAfter)] : [];
  const isRequired = Array.isArray(required) && required.includes(key);
  if (isRequired) return { type: 'sequence', elements: [name, value, ...rest(true)] };
  if (follows)
    return { type: 'sequence', elements: [optional({ type: 'sequence', elements: [name, value] }), ...rest(true)] };
  const [none] = rest(false);
  const some: TagFormat = { type: 'sequence', elements: [name, value, ...rest(true)] };
  return none === undefined ? optional(some) : either([some, none]);
}

/** The arguments in the order of the schema. */
function pairs(shape: PairsShape, parameters: NonNullable<Tool['parameters']>): TagFormat {
  const { properties = {}, required, $defs, definitions } = parameters;
  const isRequired = (key: string): boolean => Array.isArray(required) && required.includes(key);
  // References of an argument point into the whole schema.
  const withDefinitions = (schema: unknown): unknown =>
    typeof schema === 'object' ? { $defs, definitions, ...schema } : schema;
  const elements = Object.keys(properties as object).map((key): TagFormat => {
    const schema = propertySchema(parameters, key);
    const isPlain = !shape.isQuoted && isTextOnly(schema);
    const tag: Tag = {
      type: 'tag',
      begin: shape.keyOpen.trimStart() + key + shape.keyEnd,
      content: isPlain ? plainText(schema) : { type: 'json_schema', json_schema: withDefinitions(schema) },
      end: shape.valueEnd.trimEnd(),
    };
    const line: TagFormat = { type: 'sequence', elements: [space, tag] };
    return isRequired(key) ? line : optional(line);
  });
  return { type: 'sequence', elements: [...elements, space] };
}

/** A text, or one of the texts of an enumeration. */
function plainText(schema: unknown): TagFormat {
  const { enum: values, const: only } = schema as { enum?: unknown; const?: unknown };
  const texts = Array.isArray(values) ? values : only === undefined ? [] : [only];
  if (texts.length === 0) return { type: 'any_text' };
  return either(texts.map((value) => ({ type: 'const_string', value: String(value) })));
}
