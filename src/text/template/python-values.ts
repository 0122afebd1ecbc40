// Values of a running template with Python's text forms, equality and string methods.

import { Environment } from '@huggingface/jinja';

/** A value of a running template, with the library's type name. */
export interface Value {
  readonly type: string;
  readonly value: unknown;
}

type ValueClass = new (value?: unknown) => Value;

/** The library exports no classes of values, so they are taken from converted values. */
const classOf = (value: unknown): ValueClass => new Environment().set('value', value).constructor as ValueClass;
const [StringValue, ArrayValue, BooleanValue, IntegerValue, FunctionValue, UndefinedValue] = [
  '',
  [],
  false,
  0,
  () => 0,
  undefined,
].map(classOf) as [ValueClass, ValueClass, ValueClass, ValueClass, ValueClass, ValueClass];

export const textValue = (text: string): Value => new StringValue(text);
export const listValue = (items: readonly Value[]): Value => new ArrayValue(items);
export const booleanValue = (value: boolean): Value => new BooleanValue(value);
export const integerValue = (value: number): Value => new IntegerValue(value);
export const functionValue = (run: (args: Value[]) => Value): Value => new FunctionValue(run);
export const undefinedValue = (): Value => new UndefinedValue();

export const isText = (value: Value | undefined): value is Value & { readonly value: string } =>
  value?.type === 'StringValue';
export const isUndefined = (value: Value): boolean => value.type === 'UndefinedValue';
export const itemsOf = (value: Value): readonly Value[] | undefined =>
  Array.isArray(value.value) ? (value.value as Value[]) : undefined;
const membersOf = (value: Value): ReadonlyMap<string, Value> | undefined =>
  value.value instanceof Map ? (value.value as Map<string, Value>) : undefined;
const isNumeric = ({ type }: Value): boolean =>
  type === 'IntegerValue' || type === 'FloatValue' || type === 'BooleanValue';

/** Items that a loop visits: characters of a text, keys of a mapping, none of undefined; undefined for other values. */
export function iteratedItems(value: Value): readonly Value[] | undefined {
  if (isText(value)) return Array.from(value.value, textValue);
  if (isUndefined(value)) return [];
  const members = membersOf(value);
  return members === undefined ? itemsOf(value) : Array.from(members.keys(), textValue);
}

/** Python's `len`; undefined for a value without a length. */
export function lengthOfValue(value: Value): number | undefined {
  if (isText(value)) return countCharacters(value.value);
  if (isUndefined(value)) return 0;
  return itemsOf(value)?.length ?? membersOf(value)?.size;
}

function countCharacters(text: string): number {
  let count = 0;
  for (const _ of text) count++;
  return count;
}

/** Python's `str`; undefined is empty, as jinja2 writes it. */
export function pythonText(value: Value): string {
  if (isText(value)) return value.value;
  return isUndefined(value) ? '' : pythonRepr(value);
}

function pythonRepr(value: Value): string {
  if (isText(value)) return quoted(value.value);
  if (value.type === 'NullValue') return 'None';
  if (isUndefined(value)) return 'Undefined';
  if (value.type === 'BooleanValue') return value.value === true ? 'True' : 'False';
  const items = itemsOf(value)?.map(pythonRepr);
  if (items !== undefined && value.type === 'TupleValue')
    return `(${items.join(', ')}${items.length === 1 ? ',' : ''})`;
  if (items !== undefined) return `[${items.join(', ')}]`;
  const members = membersOf(value);
  if (members === undefined) return String(value);
  return `{${[...members].map(([key, member]) => `${quoted(key)}: ${pythonRepr(member)}`).join(', ')}}`;
}

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inner = text.replace(/[\\\p{Cc}\xa0\xad]/gu, (char) => {
    if (char === '\\') return '\\\\';
    const short = { '\n': '\\n', '\r': '\\r', '\t': '\\t' }[char];
    return short ?? `\\x${char.charCodeAt(0).toString(16).padStart(2, '0')}`;
  });
  return `${quote}${quote === "'" ? inner.replaceAll("'", "\\'") : inner}${quote}`;
}

/** Python's `==`. `visit` is called for each pair of values that is compared. */
export function pythonEquals(a: Value, b: Value, visit: () => void): boolean {
  visit();
  if (isNumeric(a) && isNumeric(b)) return Number(a.value) === Number(b.value);
  if (a.type !== b.type) return false;
  const [first, second] = [itemsOf(a), itemsOf(b)];
  if (first !== undefined && second !== undefined)
    return first.length === second.length && first.every((item, i) => pythonEquals(item, second[i] as Value, visit));
  const [left, right] = [membersOf(a), membersOf(b)];
  if (left === undefined || right === undefined) return a.value === b.value;
  if (left.size !== right.size) return false;
  return [...left].every(([key, member]) => {
    const other = right.get(key);
    return other !== undefined && pythonEquals(member, other, visit);
  });
}

const spaces = '\\s\\x1c-\\x1f\\x85';

/** Python's `strip` with its argument: a set of characters, by default white space. */
export function strip(text: string, chars: Value | undefined, sides: 'both' | 'left' | 'right' = 'both'): string {
  const set = isText(chars) ? chars.value.replace(/[\\\]^-]/g, '\\$&') : spaces;
  if (set === '') return text;
  const left = sides === 'right' ? text : text.replace(new RegExp(`^[${set}]+`, 'u'), '');
  if (sides === 'left') return left;
  const inSet = new RegExp(`[${set}]`, 'u');
  let end = left.length;
  while (end > 0) {
    // The low half of a pair is removed with its high half.
    const start = end > 1 && /[\udc00-\udfff]/.test(left[end - 1] as string) ? end - 2 : end - 1;
    if (!inSet.test(left.slice(start, end))) break;
    end = start;
  }
  return left.slice(0, end);
}

type TextMethod = (text: string, args: readonly Value[], named: ReadonlyMap<string, Value>) => Value;

const found = (text: string, index: number): Value =>
  integerValue(index < 0 ? -1 : countCharacters(text.slice(0, index)));
const argument = (args: readonly Value[], name: string): string => {
  const [first] = args;
  if (isText(first)) return first.value;
  throw new Error(`${name}() needs a text`);
};
const offset = (text: string, from: Value | undefined): number =>
  typeof from?.value === 'number' ? Array.from(text).slice(0, from.value).join('').length : 0;

/** String methods that the library lacks or that ignore their arguments there. */
export const textMethods: ReadonlyMap<string, TextMethod> = new Map<string, TextMethod>([
  ['strip', (text, [chars]) => textValue(strip(text, chars))],
  ['lstrip', (text, [chars]) => textValue(strip(text, chars, 'left'))],
  ['rstrip', (text, [chars]) => textValue(strip(text, chars, 'right'))],
  ['find', (text, args) => found(text, text.indexOf(argument(args, 'find'), offset(text, args[1])))],
  ['rfind', (text, args) => found(text, text.lastIndexOf(argument(args, 'rfind')))],
  [
    'count',
    (text, args) => {
      const part = argument(args, 'count');
      return integerValue(part === '' ? countCharacters(text) + 1 : text.split(part).length - 1);
    },
  ],
  [
    'splitlines',
    (text, [keep], named) => {
      const ends = (keep ?? named.get('keepends'))?.value === true;
      const lines = text.match(/[^\n\r\v\f\x85\u2028\u2029]*(?:\r\n|[\n\r\v\f\x85\u2028\u2029]|$)/g);
      const kept = (lines ?? []).filter((line) => line !== '');
      return listValue(kept.map((line) => textValue(ends ? line : line.replace(/[\n\r\v\f\x85\u2028\u2029]+$/, ''))));
    },
  ],
  [
    'join',
    (text, [list]) => textValue((list === undefined ? [] : (iteratedItems(list) ?? [])).map(pythonText).join(text)),
  ],
  [
    'removeprefix',
    (text, args) => {
      const part = argument(args, 'removeprefix');
      return textValue(text.startsWith(part) ? text.slice(part.length) : text);
    },
  ],
  [
    'removesuffix',
    (text, args) => {
      const part = argument(args, 'removesuffix');
      return textValue(part !== '' && text.endsWith(part) ? text.slice(0, -part.length) : text);
    },
  ],
  ['capitalize', (text) => textValue(capitalized(text))],
  ['isdigit', (text) => booleanValue(/^\p{Nd}+$/u.test(text))],
  ['isspace', (text) => booleanValue(text !== '' && strip(text, undefined) === '')],
  ['isalpha', (text) => booleanValue(/^\p{L}+$/u.test(text))],
]);

export const capitalized = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1).toLowerCase();
