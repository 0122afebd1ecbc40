// Derives how a model writes tool calls, by rendering its chat template with different calls and comparing the texts.

import type { CallFormat, JsonShape, NamedShape, PairsShape, TemplateStyle } from './call-format.ts';
import { type Probe, probeAnswer, probeId, probeKeys, probeNames, probeQuestion, probeValues } from './probe.ts';

/** A call format, or the reason why there is none. */
export type DerivedCalls =
  | { readonly format: CallFormat; readonly style: TemplateStyle }
  | { readonly problem: string };

const [nameA, nameB] = probeNames;
const [keyA, keyB] = probeKeys;
const [valueA, valueB] = probeValues;
const callA = { name: nameA, arguments: { [keyA]: valueA } };
const callB = { name: nameB, arguments: { [keyB]: valueB } };

export function deriveCalls(probe: Probe): DerivedCalls {
  const style = styles.find((each) => showsCall(probe.calls([callA], each)));
  if (style === undefined) return { problem: 'it does not write tool calls' };
  const texts = textsOf(probe, style);
  if (texts === undefined) return { problem: 'it refuses the conversations that show its format' };
  const format = jsonShape(texts) ?? pythonShape(texts) ?? markedShape(texts, probe, style);
  if (format === undefined) return { problem: 'its tool calls have no regular form' };
  if (style.ids !== 'named' && texts.ids.some((id) => JSON.stringify(format).includes(id)))
    return { problem: 'its tool calls have ids where none can be read' };
  return { format, style };
}

const styles: readonly TemplateStyle[] = (['any', 'short', 'named'] as const).flatMap((ids) =>
  (['', null] as const).flatMap((emptyContent) =>
    (['object', 'text'] as const).map((argumentsAs) => ({
      tools: 'variable' as const,
      argumentsAs,
      emptyContent,
      ids,
      callsInContent: false,
    })),
  ),
);

/** True if the text has the call, its argument not as text inside a text nor as Python writes it. */
function showsCall(conversation: string | undefined): boolean {
  // The tools before the question have the name, too.
  const text = conversation?.slice(Math.max(conversation.lastIndexOf(probeQuestion), 0)) ?? '';
  if (!text.includes(nameA)) return false;
  return text.includes(keyA) && text.includes(valueA) && !text.includes(`\\"${keyA}`) && !text.includes(`'${keyA}'`);
}

/** What the template writes for an answer with one call, and with two. */
interface Texts {
  readonly one: string;
  /** Undefined: the template writes one call only. */
  readonly two: string | undefined;
  readonly ids: readonly string[];
}

/** The texts without the beginning and the end that every answer has. */
function textsOf(probe: Probe, style: TemplateStyle): Texts | undefined {
  const answer = probe.answer({ content: probeAnswer }, true);
  const one = probe.calls([callA], style);
  if (answer === undefined || one === undefined) return undefined;
  const start = commonPrefix(one, answer);
  const end = answer.slice(answer.lastIndexOf(probeAnswer) + probeAnswer.length);
  const inner = (text: string): string => {
    const rest = text.slice(start);
    return end !== '' && rest.endsWith(end) ? rest.slice(0, -end.length) : withoutEnd(rest, end);
  };
  const two = probe.calls([callA, callB], style);
  const hasTwo = two?.includes(nameB) === true && two.includes(keyB) && two.slice(start).includes(nameA);
  return {
    one: inner(one),
    two: hasTwo ? inner(two) : undefined,
    ids: style.ids === 'named' ? ['0', '1'] : [nameA, nameB].map((name, i) => probeId(name, i, style)),
  };
}

/** The text without the suffix that it shares with the usual end: some templates write another end after calls. */
function withoutEnd(text: string, end: string): string {
  const shared = commonSuffix(text, end);
  return text.slice(0, text.length - shared);
}

// Calls as JSON objects.

function jsonShape({ one, two, ids }: Texts): CallFormat | undefined {
  const first = jsonAround(one, 0, nameA);
  if (first === undefined) return undefined;
  const isList = Array.isArray(first.value);
  const both = two === undefined ? undefined : jsonAround(two, 0, nameA);
  if (isList) {
    const item = jsonAround(one, first.from + 1, nameA);
    const shape = item === undefined ? undefined : objectShape(one, item, true, ids);
    if (shape === undefined) return undefined;
    return {
      ...noMarkers,
      sectionOpen: one.slice(0, first.from),
      sectionClose: one.slice(first.to),
      separator: ', ',
      shape,
      isParallel: both !== undefined && Array.isArray(both.value) && both.value.length === 2,
    };
  }
  const shape = objectShape(one, first, false, ids);
  if (shape === undefined) return undefined;
  const head = one.slice(0, first.from);
  const tail = one.slice(first.to);
  const second = two === undefined || both === undefined ? undefined : jsonAround(two, both.to, nameB);
  if (two === undefined || both === undefined || second === undefined)
    return { ...noMarkers, callOpen: head, callClose: tail, shape, isParallel: false };
  return { ...markers(head, two.slice(both.to, second.from), two.slice(second.to)), shape, isParallel: true };
}

const noMarkers = { sectionOpen: '', callOpen: '', callClose: '', separator: '', sectionClose: '' };

interface JsonText {
  readonly from: number;
  readonly to: number;
  readonly value: unknown;
}

/** The largest JSON value from `from` on that contains the word. */
function jsonAround(text: string, from: number, word: string): JsonText | undefined {
  const at = text.indexOf(word, from);
  for (let start = from; start <= at; start++) {
    if (text[start] !== '{' && text[start] !== '[') continue;
    const found = jsonAt(text, start);
    if (found !== undefined && found.to > at) return found;
  }
  return undefined;
}

function jsonAt(text: string, from: number): JsonText | undefined {
  let depth = 0;
  let isInText = false;
  for (let i = from; i < text.length; i++) {
    const ch = text[i];
    if (isInText && ch === '\\') i++;
    else if (ch === '"') isInText = !isInText;
    else if (!isInText && (ch === '{' || ch === '[')) depth++;
    else if (!isInText && (ch === '}' || ch === ']') && --depth === 0) {
      try {
        return { from, to: i + 1, value: JSON.parse(text.slice(from, i + 1)) };
      } catch {
        return undefined;
      }
    }
  }
  return undefined;
}

type Members = Readonly<Record<string, unknown>>;
const isMembers = (value: unknown): value is Members =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function objectShape(
  text: string,
  { from, to, value }: JsonText,
  isList: boolean,
  ids: readonly string[],
): JsonShape | undefined {
  if (!isMembers(value)) return undefined;
  const inner = isMembers(value.function) ? value.function : value;
  const nameAt = text.indexOf(nameA, from);
  const args = jsonAround(text, nameAt + nameA.length, keyA);
  if (args === undefined || args.to > to || !isArguments(args.value)) return undefined;
  const isKey = Object.hasOwn(inner, nameA);
  const keyOf = (passes: (member: unknown) => boolean) => Object.keys(inner).find((key) => passes(inner[key]));
  const nameKey = isKey ? undefined : keyOf((member) => member === nameA);
  const argumentsKey = isKey ? undefined : keyOf(isArguments);
  if (!isKey && (nameKey === undefined || argumentsKey === undefined)) return undefined;
  const end = text.slice(args.to, to);
  const idAt = end.indexOf(ids[0] ?? '');
  return {
    kind: 'json',
    isList,
    nameKey,
    argumentsKey,
    open: text.slice(from, nameAt),
    middle: text.slice(nameAt + nameA.length, args.from),
    end: idAt < 0 ? end : end.replace(ids[0] ?? '', ''),
    idAt: idAt < 0 ? undefined : idAt,
  };
}

const isArguments = (value: unknown): boolean =>
  isMembers(value) && Object.keys(value).length === 1 && value[keyA] === valueA;

// Calls as Python writes them.

const pythonCall = (name: string, key: string, value: string): RegExp =>
  new RegExp(`${name}\\(${key} ?= ?(["']?)${value}\\1\\)`);

function pythonShape({ one, two }: Texts): CallFormat | undefined {
  const first = pythonCall(nameA, keyA, valueA).exec(one);
  if (first === null) return undefined;
  const shape = { kind: 'python' } as const;
  const head = one.slice(0, first.index);
  const tail = one.slice(first.index + first[0].length);
  const both = [pythonCall(nameA, keyA, valueA), pythonCall(nameB, keyB, valueB)].map((call) => call.exec(two ?? ''));
  const [a, b] = both;
  if (two === undefined || !a || !b) return { ...noMarkers, callOpen: head, callClose: tail, shape, isParallel: false };
  const between = two.slice(a.index + a[0].length, b.index);
  return { ...markers(head, between, two.slice(b.index + b[0].length)), shape, isParallel: true };
}

// Calls with their names in markers.

function markedShape(texts: Texts, probe: Probe, style: TemplateStyle): CallFormat | undefined {
  const { one, two, ids } = texts;
  const nameAt = one.indexOf(nameA);
  if (nameAt < 0) return undefined;
  const afterName = nameAt + nameA.length;
  const args = jsonAround(one, afterName, keyA);
  const head = one.slice(0, nameAt);
  if (args !== undefined && isArguments(args.value)) {
    const [idOpen, nameEnd] = aroundId(one.slice(afterName, args.from), ids);
    const shape: NamedShape = { kind: 'named', idOpen, nameEnd };
    const between = two === undefined ? undefined : betweenCalls(two);
    if (between === undefined)
      return { ...noMarkers, callOpen: head, callClose: one.slice(args.to), shape, isParallel: false };
    return { ...markers(head, between.middle, between.tail), shape, isParallel: true };
  }
  return pairs(texts, head, probe, style);
}

/** The text from the arguments of the first call to the name of the second, and from the second's arguments on. */
function betweenCalls(two: string): { readonly middle: string; readonly tail: string } | undefined {
  const first = jsonAround(two, two.indexOf(nameA) + nameA.length, keyA);
  const nameAt = first === undefined ? -1 : two.indexOf(nameB, first.to);
  const second = nameAt < 0 ? undefined : jsonAround(two, nameAt + nameB.length, keyB);
  if (first === undefined || second === undefined) return undefined;
  return { middle: two.slice(first.to, nameAt), tail: two.slice(second.to) };
}

function aroundId(text: string, [id = '']: readonly string[]): [string | undefined, string] {
  const at = text.indexOf(id);
  return at < 0 ? [undefined, text] : [text.slice(0, at), text.slice(at + id.length)];
}

function pairs({ one, two }: Texts, head: string, probe: Probe, style: TemplateStyle): CallFormat | undefined {
  const several = probe.calls([{ name: nameA, arguments: { [keyA]: valueA, [keyB]: valueB } }], style);
  const cut =
    several === undefined ? undefined : cutPairs(several.slice(several.indexOf(nameA, several.indexOf(head))));
  const afterName = one.slice(head.length + nameA.length);
  const keyAt = afterName.indexOf(keyA);
  const valueAt = afterName.indexOf(valueA);
  if (cut === undefined || keyAt < 0 || valueAt < keyAt) return undefined;
  const lead = afterName.slice(0, keyAt);
  const keyOpen = lead.slice(lead.length - commonSuffix(lead, cut.between));
  const rest = afterName.slice(valueAt + valueA.length);
  const isQuoted = cut.keyEnd.endsWith('"') && rest.startsWith('"');
  const unquoted = isQuoted ? rest.slice(1) : rest;
  const between = isQuoted ? cut.between.slice(1) : cut.between;
  const valueEnd = between.slice(0, commonPrefix(between, unquoted));
  if (keyOpen.trim() === '' || valueEnd.trim() === '' || cut.keyEnd.trim() === '') return undefined;
  const shape: PairsShape = {
    kind: 'pairs',
    nameEnd: lead.slice(0, lead.length - keyOpen.length),
    keyOpen,
    keyEnd: isQuoted ? cut.keyEnd.slice(0, -1) : cut.keyEnd,
    valueEnd,
    isQuoted,
  };
  const close = unquoted.slice(valueEnd.length);
  const nameAt = two?.indexOf(nameB) ?? -1;
  if (two === undefined || nameAt < 0)
    return { ...noMarkers, callOpen: head, callClose: close, shape, isParallel: false };
  const skipped = (isQuoted ? 1 : 0) + valueEnd.length;
  const middle = two.slice(two.indexOf(valueA) + valueA.length + skipped, nameAt);
  const tail = two.slice(two.indexOf(valueB) + valueB.length + skipped);
  return { ...markers(head, middle, tail), shape, isParallel: true };
}

/** The text between key and value, and between the first value and the second key. */
function cutPairs(text: string): { readonly keyEnd: string; readonly between: string } | undefined {
  const [first, value, second] = [text.indexOf(keyA), text.indexOf(valueA), text.indexOf(keyB)];
  if (first < 0 || value < first || second < value) return undefined;
  return {
    keyEnd: text.slice(first + keyA.length, value),
    between: text.slice(value + valueA.length, second),
  };
}

// Markers.

/** @param middle the text between two calls */
function markers(head: string, middle: string, tail: string): typeof noMarkers {
  const open = commonSuffix(head, middle);
  const close = commonPrefix(middle.slice(0, middle.length - open), tail);
  return {
    sectionOpen: head.slice(0, head.length - open),
    callOpen: head.slice(head.length - open),
    callClose: tail.slice(0, close),
    separator: middle.slice(close, middle.length - open),
    sectionClose: tail.slice(close),
  };
}

/** Length of the common prefix that ends in no marker. */
function commonPrefix(a: string, b: string): number {
  let length = 0;
  while (length < a.length && length < b.length && a[length] === b[length]) length++;
  const prefix = a.slice(0, length);
  const open = prefix.lastIndexOf('<');
  return open >= 0 && !prefix.includes('>', open) ? open : length;
}

/** Length of the common suffix that begins in no marker. */
function commonSuffix(a: string, b: string): number {
  let length = 0;
  while (length < a.length && length < b.length && a.at(-1 - length) === b.at(-1 - length)) length++;
  const suffix = a.slice(a.length - length);
  const close = suffix.indexOf('>');
  const open = suffix.indexOf('<');
  return close >= 0 && (open < 0 || close < open) ? length - close - 1 : length;
}
