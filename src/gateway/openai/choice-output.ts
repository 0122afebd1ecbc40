// Turns the tokens of a choice into pieces of text, reasoning and tool calls, and the log-probabilities of its tokens.
import type { TokenLogprobs } from '../../core/protocol/ports.ts';
import { Detokenizer } from '../../text/detokenizer.ts';
import type { StopMatcher } from '../../text/stop-matcher.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';
import type { OutputParser, OutputPieces } from '../../text/tools/output-parser.ts';
import type { ToolCallPiece } from '../../text/tools/tool.ts';

export interface Alternative {
  readonly id: number;
  readonly logprob: number;
}

/** One output token. `start` is the offset of its text in the text of the choice, in UTF-16 units. */
export interface TokenEntry {
  readonly id: number;
  readonly start: number;
  readonly logprob: number | undefined;
  readonly alternatives: readonly Alternative[];
  /** False for tokens of reasoning and tool calls. */
  readonly isText: boolean;
}

/** A piece of a call; the first piece of a call has its id and name. */
export interface ToolCallDelta extends ToolCallPiece {
  readonly id?: string;
}

/** Output that later tokens cannot change, and its tokens. Reasoning comes before text, and text before new calls. */
export interface Delta {
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly ToolCallDelta[];
  readonly entries: readonly TokenEntry[];
  /** True if a stop string, or the last call that may be made, ended the choice. */
  readonly hasEnded: boolean;
}

interface PendingEntry {
  readonly entry: TokenEntry;
  readonly end: number;
}

/** Splits the output of a choice into the parts of an answer. */
export interface ChoiceParser {
  readonly parser: OutputParser;
  /** Special tokens that markers are made of. */
  readonly markerIds: ReadonlySet<number>;
  readonly newCallId: () => string;
}

export interface ChoiceOutputOptions {
  /** The stop string matcher of this choice; undefined: no stop strings. */
  readonly stops: StopMatcher | undefined;
  /** Token ids that end the output: reported without text. */
  readonly stopIds: ReadonlySet<number>;
  /** True if the output starts a text (chat); false if it continues one (completion). */
  readonly atStart: boolean;
  /** The text is without special tokens; default: true. */
  readonly skipSpecial?: boolean | undefined;
  /** Undefined: the whole output is text. */
  readonly parsing?: ChoiceParser | undefined;
}

/** Accepts tokens in order until `hasEnded` or `finish`. */
export class ChoiceOutput {
  readonly #detokenizer: Detokenizer | undefined;
  readonly #stops: StopMatcher | undefined;
  readonly #stopIds: ReadonlySet<number>;
  readonly #parsing: ChoiceParser | undefined;
  #stopString: string | undefined;
  #pending: PendingEntry[] = [];
  #decoded = 0;
  /** Length of the output before any possible stop string. */
  #passed = 0;
  #reasoningTokens = 0;

  constructor(
    tokenizer: Tokenizer | undefined,
    { stops, stopIds, atStart, skipSpecial = true, parsing }: ChoiceOutputOptions,
  ) {
    const visible = parsing?.markerIds;
    this.#detokenizer =
      tokenizer === undefined ? undefined : new Detokenizer(tokenizer, { atStart, skipSpecial, visible });
    this.#stops = stops;
    this.#stopIds = stopIds;
    this.#parsing = parsing;
  }

  /** The stop string that ended the output. */
  get stopString(): string | undefined {
    return this.#stopString;
  }

  /** True if the output has a tool call. */
  get hasCalls(): boolean {
    return (this.#parsing?.parser.callCount ?? 0) > 0;
  }

  /** Tokens of reasoning so far. */
  get reasoningTokens(): number {
    return this.#reasoningTokens;
  }

  /** @param text of all tokens, where no tokenizer decodes them here; without tokens, of earlier ones */
  push(tokens: Int32Array, logprobs: TokenLogprobs | undefined, text = ''): Delta {
    const pieces = new Pieces();
    if (tokens.length === 0 && this.#detokenizer === undefined) {
      this.#decoded += text.length;
      if (this.#pass(text, false, pieces)) return this.#end(pieces, true);
    }
    for (let i = 0; i < tokens.length; i++) {
      const id = tokens[i] ?? 0;
      const piece = this.#detokenizer === undefined ? (i + 1 === tokens.length ? text : '') : this.#decode(id);
      const entry = tokenEntry(id, this.#decoded, logprobs, i);
      this.#decoded += piece.length;
      this.#pending.push({ entry, end: this.#decoded });
      const isStopped = this.#pass(piece, this.#parsing?.markerIds.has(id) === true, pieces);
      if (isStopped || this.#parsing?.parser.hasEnded === true) return this.#end(pieces, isStopped);
    }
    return this.#delta(pieces, this.#release(), false);
  }

  /** Ends the choice and returns all held output. */
  finish(): Delta {
    // An incomplete character at the end is left out: the output was cut inside it.
    const pieces = new Pieces();
    this.#parse(this.#stops?.flush().emit ?? '', false, pieces);
    pieces.add(this.#parsing?.parser.finish());
    const entries = this.#pending.map((pending) => this.#marked(pending));
    this.#pending = [];
    return this.#delta(pieces, entries, false);
  }

  #decode(id: number): string {
    return this.#stopIds.has(id) ? '' : (this.#detokenizer?.push(id) ?? '');
  }

  /** True if a stop string ends in this piece. A stop string does not continue across a marker. */
  #pass(piece: string, isMarker: boolean, pieces: Pieces): boolean {
    if (this.#stops === undefined || isMarker) {
      if (isMarker) this.#parse(this.#stops?.flush().emit ?? '', false, pieces);
      this.#parse(piece, isMarker, pieces);
      return false;
    }
    const { emit, stopped } = this.#stops.push(piece);
    this.#parse(emit, false, pieces);
    this.#stopString = stopped;
    return stopped !== undefined;
  }

  #parse(text: string, isMarker: boolean, pieces: Pieces): void {
    this.#passed += text.length;
    if (this.#parsing === undefined) pieces.text += text;
    else if (text !== '') pieces.add(this.#parsing.parser.push(text, isMarker));
  }

  #end(pieces: Pieces, isStopped: boolean): Delta {
    if (isStopped) pieces.add(this.#parsing?.parser.finish());
    const before = isStopped ? this.#passed : this.#settled;
    const ready = this.#pending.filter(({ entry }) => entry.start < before);
    this.#pending = [];
    const entries = ready.map((pending) => this.#marked(pending));
    return this.#delta(pieces, entries, true);
  }

  get #settled(): number {
    return Math.min(this.#passed, this.#parsing?.parser.settled ?? this.#passed);
  }

  #release(): TokenEntry[] {
    const settled = this.#settled;
    const ready = this.#pending.findIndex(({ end }) => end > settled);
    const released = this.#pending.splice(0, ready < 0 ? this.#pending.length : ready);
    return released.map((pending) => this.#marked(pending));
  }

  #marked({ entry }: PendingEntry): TokenEntry {
    const part = this.#parsing?.parser.partAt(entry.start) ?? 'text';
    if (part === 'reasoning') this.#reasoningTokens++;
    return part === 'text' ? entry : { ...entry, isText: false };
  }

  #delta({ text, reasoning, calls }: Pieces, entries: readonly TokenEntry[], hasEnded: boolean): Delta {
    const named = calls.map((call) =>
      call.name === undefined ? call : { ...call, id: this.#parsing?.newCallId() ?? '' },
    );
    return { text, reasoning, calls: named, entries, hasEnded };
  }
}

/** The pieces of several pushes to a parser. */
class Pieces {
  text = '';
  reasoning = '';
  readonly calls: ToolCallPiece[] = [];

  add(pieces: OutputPieces | undefined): void {
    if (pieces === undefined) return;
    this.text += pieces.text;
    this.reasoning += pieces.reasoning;
    for (const call of pieces.calls) {
      const last = this.calls.at(-1);
      if (last?.index === call.index)
        this.calls[this.calls.length - 1] = { ...last, arguments: last.arguments + call.arguments };
      else this.calls.push(call);
    }
  }
}

/** Entry `i` of a piece of log-probabilities. */
export function tokenEntry(id: number, start: number, logprobs: TokenLogprobs | undefined, i: number): TokenEntry {
  if (logprobs === undefined) return { id, start, logprob: undefined, alternatives: [], isText: true };
  const alternatives: Alternative[] = [];
  for (let k = i * logprobs.width; k < (i + 1) * logprobs.width; k++) {
    alternatives.push({ id: logprobs.topTokens[k] ?? 0, logprob: logprobs.topLogprobs[k] ?? 0 });
  }
  return { id, start, logprob: logprobs.logprobs[i], alternatives, isText: true };
}
