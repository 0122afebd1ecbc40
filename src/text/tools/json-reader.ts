// Reads JSON from an output that is still being written; malformed JSON is read up to where it must end.

import { type CharSource, isSpace, type Reading } from './char-source.ts';

/** A JSON string: its text with quotes, and its value. Undefined at the end of the output. */
export function* jsonString(source: CharSource): Reading<string | undefined> {
  let raw = source.take();
  for (;;) {
    const ch = yield* source.peek();
    if (ch === undefined) return undefined;
    raw += source.take();
    if (ch === '"') break;
    if (ch === '\\' && (yield* source.peek()) !== undefined) raw += source.take();
  }
  return textOf(raw);
}

/** The value of a JSON string; its text if it is malformed. */
export function textOf(raw: string): string {
  try {
    return JSON.parse(raw) as string;
  } catch {
    return raw.slice(1, -1);
  }
}

/**
 * Passes one value as it is written to `write`: an object, list, text or word. It ends with its last bracket, or where
 * one of `ends` comes outside a text.
 */
export function* jsonValue(source: CharSource, ends: readonly string[], write: (text: string) => void): Reading<void> {
  let depth = 0;
  let isInText = false;
  for (;;) {
    const ch = yield* source.peek();
    if (ch === undefined) return;
    if (isInText) {
      write(source.take());
      if (ch === '\\' && (yield* source.peek()) !== undefined) write(source.take());
      else if (ch === '"') isInText = false;
      if (!isInText && depth === 0) return;
      continue;
    }
    if (depth === 0 && (isSpace(ch) || ch === ',' || ch === '}' || ch === ']')) return;
    if (yield* comesOne(source, ends, ch)) return;
    write(source.take());
    if (ch === '"') isInText = true;
    else if (ch === '{' || ch === '[') depth++;
    else if ((ch === '}' || ch === ']') && --depth === 0) return;
  }
}

function* comesOne(source: CharSource, literals: readonly string[], ch: string): Reading<boolean> {
  for (const literal of literals) if (literal[0] === ch && (yield* source.comes(literal))) return true;
  return false;
}
