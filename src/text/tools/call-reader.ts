// Reads sections of tool calls from an output in a model's call format.

import { isTextOnly, propertyNames, propertySchema, typedValue } from './argument-schema.ts';
import { type CallFormat, type JsonShape, markerOf, type NamedShape, type PairsShape } from './call-format.ts';
import { type CharSource, isSpace, type Reading } from './char-source.ts';
import { jsonString, jsonValue } from './json-reader.ts';
import { ObjectCall } from './object-call.ts';
import { pythonLiteral, pythonText } from './python-literal.ts';
import type { Tool } from './tool.ts';

const nameCharacter = /[\w.-]/;
const nameCharactersMax = 128;
/** What may be before the `=` of a Python argument. */
const keyCharacter = /[^"'()[\]{},=]/;
const identifier = /^[\p{L}_][\p{L}\p{N}_]*$/u;
/** Members that models write in place of those of their template. */
const nameKeys: readonly string[] = ['name', 'function'];
const argumentKeys: readonly string[] = ['arguments', 'parameters'];
const otherKeys: readonly string[] = ['type', 'id'];

/** Receives the pieces of calls. */
export interface CallSink {
  begin(name: string): void;
  add(text: string): void;
  end(): void;
}

export class CallReader {
  readonly #source: CharSource;
  readonly #format: CallFormat;
  readonly #tools: ReadonlyMap<string, Tool>;
  readonly #sink: CallSink;
  /** A call without a marker is one only if it names a tool of the request. */
  readonly #isMarked: boolean;
  /** Markers that end a malformed call. */
  readonly #ends: readonly string[];

  constructor(source: CharSource, format: CallFormat, tools: ReadonlyMap<string, Tool>, sink: CallSink) {
    this.#source = source;
    this.#format = format;
    this.#tools = tools;
    this.#sink = sink;
    this.#isMarked = markerOf(format) !== '';
    this.#ends = [format.callClose.trim(), format.sectionClose.trim()].filter((end) => end.length > 1);
  }

  /** Reads a section from its marker on; false if the text is no call. */
  section(): Reading<boolean> {
    return this.#source.attempt(this.#section());
  }

  *#section(): Reading<boolean> {
    const { sectionOpen, sectionClose, shape } = this.#format;
    if (!(yield* this.#source.accept(sectionOpen.trim()))) return false;
    const isRead = shape.kind === 'json' && shape.isList ? yield* this.#list() : yield* this.#calls();
    if (isRead) yield* this.#close(sectionClose);
    return isRead;
  }

  *#calls(): Reading<boolean> {
    if (!(yield* this.#call())) return false;
    if (this.#format.sectionOpen.trim() !== '' || !this.#isMarked)
      while (yield* this.#source.attempt(this.#nextCall()));
    return true;
  }

  *#nextCall(): Reading<boolean> {
    const source = this.#source;
    yield* source.skipSpace();
    const separator = this.#format.separator.trim();
    if (separator !== '') yield* source.accept(separator);
    else if (!this.#isMarked && /[;,]/.test((yield* source.peek()) ?? '')) source.take();
    return yield* this.#call();
  }

  /** The list of calls, or one call without its list. */
  *#list(): Reading<boolean> {
    const source = this.#source;
    yield* source.skipSpace();
    const first = yield* source.peek();
    if (first === '{') return yield* this.#call();
    if (first !== '[') return false;
    source.take();
    for (let count = 0; ; ) {
      yield* source.skipSpace();
      const ch = yield* source.peek();
      if (ch === ']') source.take();
      if (ch === ']' || ch === undefined) return count > 0;
      if (ch === ',') source.take();
      else if (yield* this.#call()) count++;
      else return count > 0;
    }
  }

  #call(): Reading<boolean> {
    return this.#source.attempt(this.#oneCall());
  }

  *#oneCall(): Reading<boolean> {
    const { callOpen, callClose, shape } = this.#format;
    yield* this.#source.skipSpace();
    if (!(yield* this.#source.accept(callOpen.trim()))) return false;
    yield* this.#source.skipSpace();
    if (!(yield* this.#body(shape))) return false;
    yield* this.#close(callClose);
    this.#sink.end();
    return true;
  }

  #body(shape: CallFormat['shape']): Reading<boolean> {
    switch (shape.kind) {
      case 'json':
        return this.#object(shape);
      case 'named':
        return this.#named(shape);
      case 'pairs':
        return this.#pairs(shape);
      case 'python':
        return this.#python();
    }
  }

  #begin(name: string): void {
    this.#source.commit();
    this.#sink.begin(name);
  }

  /** Passes a closing marker, which may be missing. Superfluous brackets before it are dropped. */
  *#close(literal: string): Reading<void> {
    const marker = literal.trim();
    if (marker === '') return;
    let ahead = 0;
    for (;;) {
      const ch = yield* this.#source.peek(ahead);
      if (ch === marker[0] || !(isSpace(ch) || ch === '}' || ch === ']')) break;
      ahead++;
    }
    yield* this.#source.accept(marker, ahead);
  }

  // A call as a JSON object.

  *#object(shape: JsonShape): Reading<boolean> {
    if ((yield* this.#source.peek()) !== '{') return false;
    const sink = { begin: (name: string) => this.#begin(name), add: (text: string) => this.#sink.add(text) };
    const call = new ObjectCall(sink, (name) => this.#isMarked || this.#tools.has(name));
    const isWhole = yield* this.#members(shape, call, 0);
    if (!call.hasName) return false;
    call.finish();
    if (!isWhole) yield* this.#dropRest();
    return true;
  }

  /** What follows a malformed call in its markers is neither arguments nor text. */
  *#dropRest(): Reading<void> {
    if (this.#ends.length === 0) return;
    while ((yield* this.#source.peek()) !== undefined && !(yield* this.#endComes())) this.#source.take();
  }

  /** Reads the members of an object. False if it has no end, or the text is no call. */
  *#members(shape: JsonShape, call: ObjectCall, depth: number): Reading<boolean> {
    const source = this.#source;
    source.take();
    for (;;) {
      yield* source.skipSpace();
      const ch = yield* source.peek();
      if (ch === '}' || ch === ',') source.take();
      if (ch === '}') return true;
      if (ch === ',') continue;
      if (ch !== '"') return false;
      const key = yield* jsonString(source);
      if (key === undefined || !(yield* this.#colon())) return false;
      if (!(yield* this.#member(shape, key, call, depth))) return false;
    }
  }

  *#colon(): Reading<boolean> {
    yield* this.#source.skipSpace();
    if ((yield* this.#source.peek()) !== ':') return false;
    this.#source.take();
    yield* this.#source.skipSpace();
    return true;
  }

  /** False if an object with this member is no call. */
  *#member(shape: JsonShape, key: string, call: ObjectCall, depth: number): Reading<boolean> {
    const source = this.#source;
    const { nameKey } = shape;
    const ch = yield* source.peek();
    if (ch === undefined) return false;
    if (nameKey !== undefined && ch === '"' && !call.hasName && (key === nameKey || nameKeys.includes(key))) {
      const name = yield* jsonString(source);
      return name !== undefined && call.setName(name);
    }
    if (key === 'function' && ch === '{' && depth === 0 && !call.hasName)
      return yield* this.#members(shape, call, depth + 1);
    if (nameKey === undefined && !call.hasName && (ch !== '{' || !call.setName(key))) return false;
    const isArguments = nameKey === undefined || key === shape.argumentsKey || argumentKeys.includes(key);
    if (!isArguments && !this.#isMarked && !call.hasName && !otherKeys.includes(key)) return false;
    if (isArguments) call.beginArguments(ch);
    yield* jsonValue(source, this.#ends, (text) => {
      if (isArguments) call.addArguments(text);
    });
    if (isArguments) call.endArguments();
    return true;
  }

  // A call with its name in markers.

  *#name(): Reading<string | undefined> {
    let name = '';
    for (;;) {
      const ch = yield* this.#source.peek();
      if (ch === undefined || !nameCharacter.test(ch)) return name === '' ? undefined : name;
      if (name.length === nameCharactersMax) return undefined;
      name += this.#source.take();
    }
  }

  *#named({ idOpen, nameEnd }: NamedShape): Reading<boolean> {
    const source = this.#source;
    const name = yield* this.#name();
    if (name === undefined) return false;
    yield* source.skipSpace();
    if (idOpen !== undefined && (yield* source.accept(idOpen.trim()))) yield* this.#name();
    yield* source.skipSpace();
    if (!(yield* source.accept(nameEnd.trim()))) return false;
    yield* source.skipSpace();
    const ch = yield* source.peek();
    if (ch !== '{') return false;
    this.#begin(name);
    yield* jsonValue(source, this.#ends, (text) => this.#sink.add(text));
    return true;
  }

  *#pairs(shape: PairsShape): Reading<boolean> {
    const source = this.#source;
    const name = yield* this.#name();
    if (name === undefined) return false;
    yield* source.skipSpace();
    if (!(yield* source.accept(shape.nameEnd.trim()))) return false;
    this.#begin(name);
    const schema = this.#tools.get(name)?.parameters;
    let before = '{';
    for (;;) {
      yield* source.skipSpace();
      if ((yield* source.peek()) === undefined || (yield* this.#endComes())) break;
      if (!(yield* source.accept(shape.keyOpen.trim()))) {
        source.take();
        continue;
      }
      const key = (yield* this.#until(shape.keyEnd.trim()))?.trim();
      if (key === undefined) return true;
      this.#sink.add(`${before}${JSON.stringify(key)}: `);
      before = ', ';
      if (!(yield* this.#value(shape, propertySchema(schema, key)))) return true;
    }
    this.#sink.add(before === '{' ? '{}' : '}');
    return true;
  }

  /** Brackets are no marker of calls: the name of a tool before `(` is one. */
  *#python(): Reading<boolean> {
    const source = this.#source;
    const name = yield* this.#name();
    if (name === undefined || !this.#tools.has(name) || (yield* source.peek()) !== '(') return false;
    this.#begin(name);
    source.take();
    const schema = this.#tools.get(name)?.parameters;
    const names = propertyNames(schema);
    const given = new Set<string>();
    let isWhole = false;
    while (!isWhole) {
      yield* source.skipSpace();
      const ch = yield* source.peek();
      if (ch === undefined) break;
      if (ch === ')' || ch === ',') {
        source.take();
        isWhole = ch === ')';
        continue;
      }
      const named = yield* this.#pythonKey(names);
      const value = yield* pythonText(source);
      if (value === undefined) break;
      // A positional argument belongs to the next property; one too many is dropped.
      const key = named ?? names.find((each) => !given.has(each));
      if (key === undefined) continue;
      const json = pythonLiteral(value) ?? typedValue(value, propertySchema(schema, key));
      this.#sink.add(`${given.size === 0 ? '{' : ', '}${JSON.stringify(key)}: ${json}`);
      given.add(key);
    }
    if (given.size === 0) this.#sink.add('{}');
    else if (isWhole) this.#sink.add('}');
    return true;
  }

  /** Moves behind the `=` of a named argument; undefined before a positional one. @param names of the tool's arguments */
  *#pythonKey(names: readonly string[]): Reading<string | undefined> {
    const source = this.#source;
    let text = '';
    let ch = yield* source.peek();
    for (; ch !== undefined && keyCharacter.test(ch); ch = yield* source.peek(text.length)) text += ch;
    const key = text.trim();
    if (ch !== '=' || (yield* source.peek(text.length + 1)) === '=') return undefined;
    if (!identifier.test(key) && !names.includes(key)) return undefined;
    yield* source.accept('=', text.length);
    return key;
  }

  *#endComes(): Reading<boolean> {
    for (const end of this.#ends) if (yield* this.#source.comes(end)) return true;
    return false;
  }

  /** The text before the literal; undefined if the output ends before it. */
  *#until(literal: string): Reading<string | undefined> {
    let text = '';
    for (;;) {
      const ch = yield* this.#source.peek();
      if (ch === undefined) return undefined;
      if (ch === literal[0] && (yield* this.#source.accept(literal))) return text;
      text += this.#source.take();
    }
  }

  /** One argument as JSON. False if the output ends inside it. */
  *#value({ keyEnd, valueEnd, isQuoted }: PairsShape, schema: unknown): Reading<boolean> {
    const source = this.#source;
    const end = valueEnd.trim();
    if (isQuoted) {
      yield* source.skipSpace();
      yield* jsonValue(source, [end], (text) => this.#sink.add(text));
      yield* source.skipSpace();
      return yield* source.accept(end);
    }
    // The template's own white space around the value is no part of it.
    yield* source.acceptExactly(/\s*$/.exec(keyEnd)?.[0] ?? '');
    const paddedEnd = (/^\s*/.exec(valueEnd)?.[0] ?? '') + end;
    const isText = isTextOnly(schema);
    let text = '';
    if (isText) this.#sink.add('"');
    for (;;) {
      const ch = yield* source.peek();
      if (ch === undefined) {
        if (!isText) this.#sink.add(text);
        return false;
      }
      if (ch === paddedEnd[0] && (yield* source.acceptExactly(paddedEnd))) break;
      if (ch === end[0] && (yield* source.acceptExactly(end))) break;
      const piece = source.take() + (/[\ud800-\udbff]/.test(ch) && (yield* source.peek()) ? source.take() : '');
      if (isText) this.#sink.add(JSON.stringify(piece).slice(1, -1));
      else text += piece;
    }
    this.#sink.add(isText ? '"' : typedValue(text, schema));
    return true;
  }
}
