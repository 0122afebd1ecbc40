// Values as Python writes them, for call formats that are Python calls.
import type { CharSource, Reading } from './char-source.ts';

interface Place {
  readonly text: string;
  at: number;
}

/** The text of an argument, up to the comma or bracket after it; undefined if the output ends before. */
export function* pythonText(source: CharSource): Reading<string | undefined> {
  let text = '';
  let quote = '';
  for (let depth = 0; ; ) {
    const ch = yield* source.peek();
    if (ch === undefined) return undefined;
    if (quote === '' && depth === 0 && (ch === ',' || ch === ')')) return text.trim();
    text += source.take();
    if (quote !== '') {
      if (ch === '\\' && (yield* source.peek()) !== undefined) text += source.take();
      else if (ch === quote) quote = '';
    } else if (ch === '"' || (ch === "'" && !/\w'$/.test(text))) quote = ch;
    else if ('([{'.includes(ch)) depth++;
    else if (')]}'.includes(ch)) depth--;
  }
}

/** The JSON of a Python literal; undefined if the text is none. JSON itself is understood, too. */
export function pythonLiteral(text: string): string | undefined {
  const place = { text: text.trim(), at: 0 };
  const json = valueAt(place);
  return json !== undefined && place.at === place.text.length ? json : undefined;
}

const words: ReadonlyMap<string, string> = new Map([
  ...(['true', 'false', 'null'] as const).map((word): [string, string] => [word, word]),
  ['True', 'true'],
  ['False', 'false'],
  ['None', 'null'],
]);

function valueAt(place: Place): string | undefined {
  const ch = place.text[place.at];
  if (ch === '"' || ch === "'") return stringAt(place, ch);
  if (ch === '[') return itemsAt(place, ']');
  if (ch === '(') return itemsAt(place, ')');
  if (ch === '{') return membersAt(place);
  const [word] = /^(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|\w+)/.exec(place.text.slice(place.at)) ?? [];
  const json = word === undefined ? undefined : /^[-\d]/.test(word) ? word : words.get(word);
  place.at += word?.length ?? 0;
  return json !== undefined && Number.isNaN(Number(json)) && !words.has(json) ? undefined : json;
}

function skipSpace(place: Place): void {
  while (/\s/.test(place.text[place.at] ?? '')) place.at++;
}

function itemsAt(place: Place, close: string): string | undefined {
  const items: string[] = [];
  place.at++;
  for (;;) {
    skipSpace(place);
    if (place.text[place.at] === close) break;
    const item = valueAt(place);
    if (item === undefined) return undefined;
    items.push(item);
    skipSpace(place);
    if (place.text[place.at] === ',') place.at++;
    else if (place.text[place.at] !== close) return undefined;
  }
  place.at++;
  return `[${items.join(', ')}]`;
}

function membersAt(place: Place): string | undefined {
  const members: string[] = [];
  place.at++;
  for (;;) {
    skipSpace(place);
    const ch = place.text[place.at];
    if (ch === '}') break;
    const key = ch === '"' || ch === "'" ? stringAt(place, ch) : undefined;
    skipSpace(place);
    if (key === undefined || place.text[place.at++] !== ':') return undefined;
    skipSpace(place);
    const value = valueAt(place);
    if (value === undefined) return undefined;
    members.push(`${key}: ${value}`);
    skipSpace(place);
    if (place.text[place.at] === ',') place.at++;
    else if (place.text[place.at] !== '}') return undefined;
  }
  place.at++;
  return `{${members.join(', ')}}`;
}

const escapes: ReadonlyMap<string, string> = new Map([
  ...(['\\', "'", '"', '/'] as const).map((ch): [string, string] => [ch, ch]),
  ['n', '\n'],
  ['r', '\r'],
  ['t', '\t'],
  ['b', '\b'],
  ['f', '\f'],
  ['v', '\v'],
  ['a', '\x07'],
  ['0', '\0'],
  ['\n', ''],
]);
const codeDigits: ReadonlyMap<string, number> = new Map([
  ['x', 2],
  ['u', 4],
  ['U', 8],
]);

function stringAt(place: Place, quote: string): string | undefined {
  let value = '';
  for (place.at++; place.at < place.text.length; place.at++) {
    const ch = place.text[place.at] as string;
    if (ch === quote) {
      place.at++;
      return JSON.stringify(value);
    }
    if (ch !== '\\') value += ch;
    else {
      const kind = place.text[++place.at] ?? '';
      const digits = codeDigits.get(kind);
      if (digits === undefined) value += escapes.get(kind) ?? `\\${kind}`;
      else {
        const code = Number.parseInt(place.text.slice(place.at + 1, place.at + 1 + digits), 16);
        if (!(code <= 0x10ffff)) return undefined;
        value += String.fromCodePoint(code);
        place.at += digits;
      }
    }
  }
  return undefined;
}
