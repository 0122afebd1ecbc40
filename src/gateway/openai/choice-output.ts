// Turns the tokens of a choice into pieces of text, each with the log-probabilities of its tokens.
import type { TokenLogprobs } from '../../core/protocol/ports.ts';
import { Detokenizer } from '../../text/detokenizer.ts';
import type { StopMatcher } from '../../text/stop-matcher.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';

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
}

/** Text that later tokens cannot change, and its tokens. */
export interface Delta {
  readonly text: string;
  readonly entries: readonly TokenEntry[];
  /** The stop string that ended the choice. */
  readonly stopped: string | undefined;
}

interface PendingEntry {
  readonly entry: TokenEntry;
  readonly end: number;
}

export interface ChoiceOutputOptions {
  /** The stop string matcher of this choice; undefined: no stop strings. */
  readonly stops: StopMatcher | undefined;
  /** Token ids that end the output: reported without text. */
  readonly stopIds: ReadonlySet<number>;
  /** True if the output starts a text (chat); false if it continues one (completion). */
  readonly atStart: boolean;
}

/** Accepts tokens in order until `stopped` or `finish`. */
export class ChoiceOutput {
  readonly #detokenizer: Detokenizer | undefined;
  readonly #stops: StopMatcher | undefined;
  readonly #stopIds: ReadonlySet<number>;
  #pending: PendingEntry[] = [];
  #decoded = 0;
  #emitted = 0;

  constructor(tokenizer: Tokenizer | undefined, { stops, stopIds, atStart }: ChoiceOutputOptions) {
    this.#detokenizer = tokenizer === undefined ? undefined : new Detokenizer(tokenizer, { atStart });
    this.#stops = stops;
    this.#stopIds = stopIds;
  }

  push(tokens: Int32Array, logprobs: TokenLogprobs | undefined): Delta {
    let text = '';
    for (let i = 0; i < tokens.length; i++) {
      const id = tokens[i] ?? 0;
      const piece = this.#stopIds.has(id) ? '' : (this.#detokenizer?.push(id) ?? '');
      const entry = tokenEntry(id, this.#decoded, logprobs, i);
      this.#decoded += piece.length;
      this.#pending.push({ entry, end: this.#decoded });
      const matched = this.#match(piece);
      text += matched.emit;
      if (matched.stopped !== undefined) return this.#stop(text, matched.stopped);
    }
    this.#emitted += text.length;
    return { text, entries: this.#release(), stopped: undefined };
  }

  /** Ends the choice and returns all held text. */
  finish(): Delta {
    // An incomplete character at the end is left out: the output was cut inside it.
    const text = this.#stops?.flush().emit ?? '';
    this.#emitted += text.length;
    const entries = this.#pending.map((pending) => pending.entry);
    this.#pending = [];
    return { text, entries, stopped: undefined };
  }

  #match(piece: string): { emit: string; stopped: string | undefined } {
    if (this.#stops === undefined) return { emit: piece, stopped: undefined };
    const { emit, stopped } = this.#stops.push(piece);
    return { emit, stopped };
  }

  #stop(text: string, stopped: string): Delta {
    this.#emitted += text.length;
    const entries = this.#pending.filter(({ entry }) => entry.start < this.#emitted).map(({ entry }) => entry);
    this.#pending = [];
    return { text, entries, stopped };
  }

  #release(): TokenEntry[] {
    const ready = this.#pending.findIndex(({ end }) => end > this.#emitted);
    const released = this.#pending.splice(0, ready < 0 ? this.#pending.length : ready);
    return released.map(({ entry }) => entry);
  }
}

/** Entry `i` of a piece of log-probabilities. */
export function tokenEntry(id: number, start: number, logprobs: TokenLogprobs | undefined, i: number): TokenEntry {
  if (logprobs === undefined) return { id, start, logprob: undefined, alternatives: [] };
  const alternatives: Alternative[] = [];
  for (let k = i * logprobs.width; k < (i + 1) * logprobs.width; k++) {
    alternatives.push({ id: logprobs.topTokens[k] ?? 0, logprob: logprobs.topLogprobs[k] ?? 0 });
  }
  return { id, start, logprob: logprobs.logprobs[i], alternatives };
}
