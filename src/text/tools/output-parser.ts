// Splits the output of a model into reasoning, text and tool calls while it arrives.

import { type CallFormat, markerOf, type ReasoningFormat } from './call-format.ts';
import { CallReader } from './call-reader.ts';
import { CharSource, isSpace, type Reading } from './char-source.ts';
import type { Tool, ToolCallPiece } from './tool.ts';

export interface OutputParserOptions {
  /** Undefined: no reasoning. */
  readonly reasoning: ReasoningFormat | undefined;
  /** The prompt ends inside the reasoning. */
  readonly hasReasoningBegun: boolean;
  /** Undefined: no calls. */
  readonly calls: { readonly format: CallFormat; readonly tools: readonly Tool[] } | undefined;
  /** Calls after this number are not read: the output ends there. */
  readonly callsMax: number;
}

/** What a piece of output adds to each part of an answer. */
export interface OutputPieces {
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly ToolCallPiece[];
}

/** The part of an answer that a character of the output belongs to. Markers belong to what they enclose. */
export type OutputPart = 'text' | 'reasoning' | 'call';

/** The result does not depend on how the output is split into pieces. */
export class OutputParser {
  readonly #source = new CharSource();
  readonly #options: OutputParserOptions;
  readonly #run: Reading<void>;
  /** Where parts begin, in order. */
  readonly #parts: { readonly from: number; readonly part: OutputPart }[] = [{ from: 0, part: 'text' }];
  #text = '';
  #reasoning = '';
  #calls: ToolCallPiece[] = [];
  #callCount = 0;
  #hasEnded = false;
  /** Where the section of calls that is being read begins. */
  #callFrom = 0;

  constructor(options: OutputParserOptions) {
    this.#options = options;
    this.#run = this.#output();
  }

  /** @param isHidden the piece is a special token: markers may use it, and it is no text */
  push(piece: string, isHidden = false): OutputPieces {
    if (!this.#hasEnded) this.#source.add(piece, isHidden);
    return this.#advance();
  }

  /** Ends the output: what was held back is text, or the end of what is open. */
  finish(): OutputPieces {
    this.#source.end();
    return this.#advance();
  }

  /** Number of calls that have begun. */
  get callCount(): number {
    return this.#callCount;
  }

  /** True after the last call that may be read. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Length of the output whose parts are settled. */
  get settled(): number {
    return this.#source.settled;
  }

  /** The part at an offset below `settled`. */
  partAt(offset: number): OutputPart {
    return this.#parts.findLast(({ from }) => from <= offset)?.part ?? 'text';
  }

  #advance(): OutputPieces {
    this.#run.next();
    this.#source.release();
    const pieces = { text: this.#text, reasoning: this.#reasoning, calls: this.#calls };
    this.#text = '';
    this.#reasoning = '';
    this.#calls = [];
    return pieces;
  }

  #enter(part: OutputPart, from: number): void {
    if (this.#parts.at(-1)?.part !== part) this.#parts.push({ from, part });
  }

  *#output(): Reading<void> {
    const { reasoning } = this.#options;
    const { hasReasoningBegun: hasBegun } = this.#options;
    if (reasoning !== undefined && (hasBegun || (yield* this.#source.attempt(this.#opens(reasoning.open)))))
      yield* this.#reason(reasoning.close);
    yield* this.#answer();
  }

  *#opens(marker: string): Reading<boolean> {
    yield* this.#source.skipSpace();
    return yield* this.#source.accept(marker);
  }

  *#reason(close: string): Reading<void> {
    const source = this.#source;
    this.#enter('reasoning', 0);
    yield* source.skipSpace();
    let space = '';
    for (;;) {
      const ch = yield* source.peek();
      if (ch === undefined) return;
      if (ch === close[0] && (yield* source.accept(close))) break;
      if (isSpace(ch)) space += source.take();
      else {
        if (!source.isHidden()) {
          this.#reasoning += space + ch;
          space = '';
        }
        source.take();
      }
    }
    yield* source.skipSpace();
  }

  *#answer(): Reading<void> {
    const source = this.#source;
    const { calls } = this.#options;
    const marker = calls === undefined ? '' : markerOf(calls.format);
    const reader = calls === undefined ? undefined : this.#reader(calls.format, calls.tools);
    // Without a marker, calls come first or not at all.
    let mayCall = true;
    for (;;) {
      const start = source.offset;
      const first = yield* source.peek();
      const mayBegin = isSpace(first) || (marker === '' ? first === '{' || first === '[' : first === marker[0]);
      if (reader !== undefined && mayCall && mayBegin) {
        this.#callFrom = start;
        if (yield* source.attempt(sectionAfterSpace(source, reader))) {
          if (this.#hasEnded) return;
          continue;
        }
      }
      let text = '';
      while (isSpace(yield* source.peek())) text += source.take();
      const ch = yield* source.peek();
      if (ch !== undefined && !source.isHidden()) text += ch;
      if (ch === undefined && this.#callCount > 0) return;
      if (text !== '') this.#enter('text', start);
      this.#text += text;
      if (ch === undefined) return;
      source.take();
      if (marker === '' && !isSpace(ch)) mayCall = false;
    }
  }

  #reader(format: CallFormat, tools: readonly Tool[]): CallReader {
    return new CallReader(this.#source, format, new Map(tools.map((tool) => [tool.name, tool])), {
      begin: (name) => {
        if (this.#hasEnded) return;
        this.#enter('call', this.#callFrom);
        this.#calls.push({ index: this.#callCount++, name, arguments: '' });
      },
      add: (text) => this.#addArguments(text),
      end: () => {
        if (this.#callCount >= this.#options.callsMax) this.#hasEnded = true;
      },
    });
  }

  #addArguments(text: string): void {
    if (this.#hasEnded) return;
    const index = this.#callCount - 1;
    const last = this.#calls.pop();
    if (last === undefined) this.#calls.push({ index, arguments: text });
    else this.#calls.push({ ...last, arguments: last.arguments + text });
  }
}

function* sectionAfterSpace(source: CharSource, reader: CallReader): Reading<boolean> {
  yield* source.skipSpace();
  return yield* reader.section();
}
