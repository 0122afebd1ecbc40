// The gateway's compiler: checks on threads of its own whether grammars compile, tenant by tenant, and remembers the answers.

import { type Grammar, type GrammarCompiler, GrammarQueueFull } from '../../core/protocol/grammar.ts';
import { closedFault, GrammarThread } from './grammar-thread.ts';

export interface CompilerLimits {
  /** A grammar that takes longer is refused. */
  readonly compileMsMax: number;
  /** Added for the first compilation of a thread; undefined: that of grammar threads. */
  readonly vocabularyMs?: number | undefined;
  /** Grammars that wait, of one tenant and of all. */
  readonly tenantWaitingMax: number;
  readonly waitingMax: number;
  /** A refusal that another try may end differently, such as a time-out, is forgotten after this time. */
  readonly refusedMs: number;
}

export const compilerLimits: CompilerLimits = {
  ...{ compileMsMax: 10_000, tenantWaitingMax: 64, waitingMax: 256, refusedMs: 60_000 },
};

/** Text of the grammars whose answers are remembered. */
const rememberedCharactersMax = 4 << 20;
/** The second thread compiles for other tenants while the first one is in use. */
const threadsMax = 2;
/** A tenant without a name, which stands for all clients, may use both threads after this time. */
const longMs = 1000;
/** The second thread ends after this time without use. */
const idleMs = 30_000;
const retryAfterMs = 1000;

interface WaitingGrammar {
  readonly key: string;
  readonly grammar: Grammar;
  answer(fault: string | undefined, isFinal: boolean): void;
}

interface CompilerThread {
  readonly thread: GrammarThread;
  /** The tenant of the grammar that it compiles; undefined: it is idle. */
  tenant: string | undefined;
  sinceMs: number;
  idleTimer: NodeJS.Timeout | undefined;
}

interface Answer {
  readonly fault: string | undefined;
  readonly expiresMs: number;
}

export class ThreadCompiler implements GrammarCompiler {
  readonly #create: () => GrammarThread;
  readonly #limits: CompilerLimits;
  readonly #threads: CompilerThread[] = [];
  /** By tenant; the first tenant is next. */
  readonly #waiting = new Map<string, WaitingGrammar[]>();
  /** In the order of their last use: why each cannot be compiled, undefined if it can. */
  readonly #answers = new Map<string, Answer>();
  readonly #pending = new Map<string, Promise<string | undefined>>();
  #characters = 0;
  #compilations = 0;
  #waitingCount = 0;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  /** @param entry module of the threads @param model path of the model */
  constructor(entry: URL, model: string, limits: Partial<CompilerLimits> = {}) {
    this.#limits = { ...compilerLimits, ...limits };
    const { compileMsMax, vocabularyMs } = this.#limits;
    this.#create = () => new GrammarThread({ entry, model, memory: undefined, compileMsMax, vocabularyMs });
  }

  /** Starts the thread and reads the vocabulary, so that the first grammar does not wait for them. */
  warmUp(): void {
    this.#first.thread.load();
  }

  compile(grammar: Grammar, tenant = ''): Promise<string | undefined> {
    const key = keyOf(grammar);
    const known = this.#remembered(key);
    if (known !== undefined) return Promise.resolve(known.fault);
    if (this.#closed) return Promise.resolve(closedFault);
    return this.#pending.get(key) ?? this.#enqueue({ key, grammar, tenant });
  }

  /** Grammars that wait or are being compiled are answered with a fault. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    for (const waiting of this.#waiting.values()) for (const { answer } of waiting) answer(closedFault, false);
    this.#waiting.clear();
    this.#waitingCount = 0;
    for (const { idleTimer } of this.#threads) clearTimeout(idleTimer);
    await Promise.all(this.#threads.map(({ thread }) => thread.close()));
  }

  get #first(): CompilerThread {
    return this.#threads[0] ?? this.#addThread();
  }

  #remembered(key: string): Answer | undefined {
    const answer = this.#answers.get(key);
    if (answer === undefined) return undefined;
    this.#answers.delete(key);
    if (performance.now() < answer.expiresMs) {
      this.#answers.set(key, answer);
      return answer;
    }
    this.#characters -= key.length;
    return undefined;
  }

  #enqueue({ key, grammar, tenant }: Pick<WaitingGrammar, 'key' | 'grammar'> & { tenant: string }) {
    const { waitingMax, tenantWaitingMax } = this.#limits;
    const own = this.#waiting.get(tenant) ?? [];
    const most = tenant === '' ? waitingMax : tenantWaitingMax;
    if (this.#waitingCount >= waitingMax || own.length >= most) {
      const figures = own.length >= most ? `${own.length} of the tenant` : `${this.#waitingCount}`;
      return Promise.reject(new GrammarQueueFull(`${figures} other grammars wait to be compiled`, retryAfterMs));
    }
    const pending = new Promise<string | undefined>((resolve) => {
      const answer: WaitingGrammar['answer'] = (fault, isFinal) => {
        this.#pending.delete(key);
        this.#remember(key, fault, isFinal);
        resolve(fault);
      };
      this.#waiting.set(tenant, [...own, { key, grammar, answer }]);
      this.#waitingCount++;
    });
    this.#pending.set(key, pending);
    this.#dispatch();
    return pending;
  }

  /** Gives waiting grammars to idle threads, tenant after tenant. */
  #dispatch(): void {
    for (let tenant = this.#nextTenant(); tenant !== undefined; tenant = this.#nextTenant()) {
      const idle = this.#threads.find((each) => each.tenant === undefined);
      if (idle === undefined && this.#threads.length === threadsMax) return;
      this.#start(idle ?? this.#addThread(), tenant);
    }
    // A tenant without a name waits for the time after which it may use the second thread.
    clearTimeout(this.#timer);
    if (this.#waitingCount > 0) this.#timer = setTimeout(() => this.#dispatch(), longMs).unref();
  }

  /** The first tenant that waits and may use a thread: one thread is left for the others. */
  #nextTenant(): string | undefined {
    const nowMs = performance.now();
    return [...this.#waiting.keys()].find((tenant) => {
      const own = this.#threads.filter((each) => each.tenant === tenant);
      return own.length === 0 || (tenant === '' && own.every(({ sinceMs }) => nowMs - sinceMs >= longMs));
    });
  }

  #start(compiler: CompilerThread, tenant: string): void {
    const [first, ...rest] = this.#waiting.get(tenant) ?? [];
    this.#waiting.delete(tenant);
    // Behind the other tenants.
    if (rest.length > 0) this.#waiting.set(tenant, rest);
    if (first === undefined) return;
    this.#waitingCount--;
    clearTimeout(compiler.idleTimer);
    compiler.tenant = tenant;
    compiler.sinceMs = performance.now();
    const done = (fault: string | undefined, isFinal: boolean): void => {
      compiler.tenant = undefined;
      first.answer(fault, isFinal);
      if (this.#closed) return;
      this.#dispatch();
      if (compiler.tenant === undefined && compiler !== this.#threads[0]) this.#endWhenIdle(compiler);
    };
    compiler.thread.compile({ number: ++this.#compilations, grammar: first.grammar, keeps: false, done });
  }

  #addThread(): CompilerThread {
    const added = { thread: this.#create(), tenant: undefined, sinceMs: 0, idleTimer: undefined };
    this.#threads.push(added);
    return added;
  }

  #endWhenIdle(compiler: CompilerThread): void {
    compiler.idleTimer = setTimeout(() => {
      const index = this.#threads.indexOf(compiler);
      if (index >= 0) this.#threads.splice(index, 1);
      void compiler.thread.close();
    }, idleMs).unref();
  }

  #remember(key: string, fault: string | undefined, isFinal: boolean): void {
    const expiresMs = isFinal ? Number.POSITIVE_INFINITY : performance.now() + this.#limits.refusedMs;
    this.#answers.set(key, { fault, expiresMs });
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
