// The gateway's compiler: checks in a thread of its own whether a grammar compiles, and remembers the answer.

import type { Grammar, GrammarCompiler } from '../../core/protocol/grammar.ts';
import { GrammarThread } from './grammar-thread.ts';

/** A grammar that takes longer is refused. */
const compileMsMax = 10_000;
/** Text of the grammars whose answers are remembered. */
const rememberedCharactersMax = 4 << 20;
/** Compilations that may wait; one more is refused. */
const waitingMax = 256;

export class ThreadCompiler implements GrammarCompiler {
  readonly #thread: GrammarThread;
  /** In the order of their last use: why each cannot be compiled, undefined if it can. */
  readonly #answers = new Map<string, string | undefined>();
  readonly #pending = new Map<string, Promise<string | undefined>>();
  #characters = 0;
  #compilations = 0;

  /** @param entry module of the thread @param model path of the model */
  constructor(entry: URL, model: string, compileMs: number = compileMsMax, vocabularyMs?: number) {
    this.#thread = new GrammarThread({ entry, model, memory: undefined, compileMsMax: compileMs, vocabularyMs });
  }

  compile(grammar: Grammar): Promise<string | undefined> {
    const key = keyOf(grammar);
    if (this.#answers.has(key)) {
      const answer = this.#answers.get(key);
      this.#answers.delete(key);
      this.#answers.set(key, answer);
      return Promise.resolve(answer);
    }
    return this.#pending.get(key) ?? this.#start(key, grammar);
  }

  close(): Promise<void> {
    return this.#thread.close();
  }

  #start(key: string, grammar: Grammar): Promise<string | undefined> {
    if (this.#pending.size >= waitingMax)
      return Promise.resolve(`${this.#pending.size} other grammars are being compiled: try again`);
    const pending = new Promise<string | undefined>((resolve) => {
      const done = (fault: string | undefined): void => {
        this.#pending.delete(key);
        this.#remember(key, fault);
        resolve(fault);
      };
      this.#thread.compile({ number: ++this.#compilations, grammar, keeps: false, done });
    });
    this.#pending.set(key, pending);
    return pending;
  }

  #remember(key: string, fault: string | undefined): void {
    this.#answers.set(key, fault);
    this.#characters += key.length;
    for (const oldest of this.#answers.keys()) {
      if (this.#characters <= rememberedCharactersMax) return;
      this.#answers.delete(oldest);
      this.#characters -= oldest.length;
    }
  }
}

export function keyOf({ kind, text }: Grammar): string {
  return `${kind} ${text}`;
}
