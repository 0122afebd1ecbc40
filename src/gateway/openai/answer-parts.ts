// The output of a choice as parts in their order: reasoning, text and tool calls. Protocols with blocks or items write these.
import type { Delta } from './choice-output.ts';

export type AnswerPart =
  | { readonly kind: 'reasoning' | 'text'; text: string }
  /** The text is the JSON of the arguments. */
  | { readonly kind: 'call'; readonly id: string; readonly name: string; text: string };

/** Receives the parts while they grow; `index` counts from 0. A part is closed before the next one is opened. */
export interface PartListener {
  opened(part: AnswerPart, index: number): void;
  grew(part: AnswerPart, index: number, text: string): void;
  closed(part: AnswerPart, index: number): void;
}

export class AnswerParts {
  readonly parts: AnswerPart[] = [];
  readonly #listener: PartListener | undefined;
  #isOpen = false;

  constructor(listener?: PartListener) {
    this.#listener = listener;
  }

  /** The rest of a call that an earlier delta began comes before text, and new calls after it. */
  append({ reasoning, text, calls }: Delta): void {
    for (const { name, arguments: args } of calls) if (name === undefined) this.#grow(args);
    this.#extend('reasoning', reasoning);
    this.#extend('text', text);
    for (const { id = '', name, arguments: args } of calls) {
      if (name === undefined) continue;
      this.#open({ kind: 'call', id, name, text: '' });
      this.#grow(args);
    }
  }

  /** The output has ended. */
  end(): void {
    const last = this.parts.at(-1);
    if (this.#isOpen && last !== undefined) this.#listener?.closed(last, this.parts.length - 1);
    this.#isOpen = false;
  }

  #extend(kind: 'reasoning' | 'text', text: string): void {
    if (text === '') return;
    if (!this.#isOpen || this.parts.at(-1)?.kind !== kind) this.#open({ kind, text: '' });
    this.#grow(text);
  }

  #open(part: AnswerPart): void {
    this.end();
    this.parts.push(part);
    this.#isOpen = true;
    this.#listener?.opened(part, this.parts.length - 1);
  }

  #grow(text: string): void {
    const last = this.parts.at(-1);
    if (text === '' || last === undefined) return;
    last.text += text;
    this.#listener?.grew(last, this.parts.length - 1, text);
  }
}
