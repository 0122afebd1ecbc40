// The owner's side of a grammar thread: starts it, bounds the time of each compilation, and replaces it when it fails.
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import type { Grammar } from '../../core/protocol/grammar.ts';
import type {
  FromGrammarThread,
  GrammarNumber,
  GrammarThreadData,
  MaskRequest,
  ToGrammarThread,
} from './grammar-protocol.ts';

const defaultVocabularyMs = 30_000;

export interface GrammarThreadOptions extends GrammarThreadData {
  /** Module of the thread, which answers by a GrammarHost. */
  readonly entry: URL;
  readonly compileMsMax: number;
  /** Added for the first compilation of a thread, which includes reading the vocabulary. */
  readonly vocabularyMs?: number | undefined;
  /** The thread has failed: what it held is lost, and the next message starts another. */
  onLost?(): void;
}

interface Compilation {
  readonly number: GrammarNumber;
  readonly grammar: Grammar;
  readonly keeps: boolean;
  /** @param isFinal false: the time or the thread ended, so that another try may have another answer */
  done(fault: string | undefined, isFinal: boolean): void;
}

interface RunningThread {
  readonly worker: Worker;
  readonly port: MessagePort;
  hasVocabulary: boolean;
}

/** Why a grammar was not compiled. */
export const closedFault = 'the compiler is closed';

export class GrammarThread {
  readonly #options: GrammarThreadOptions;
  /** The first one is being compiled. */
  readonly #queue: Compilation[] = [];
  #running: RunningThread | undefined;
  #deadlineMs = Number.POSITIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: GrammarThreadOptions) {
    this.#options = options;
  }

  /** Requests for masks wait until the compilation has ended. */
  get isCompiling(): boolean {
    return this.#queue.length > 0;
  }

  compile(compilation: Compilation): void {
    if (this.#closed) {
      compilation.done(closedFault, false);
      return;
    }
    this.#queue.push(compilation);
    if (this.#queue.length === 1) this.#startFirst();
  }

  /** Starts the thread and reads the vocabulary, if it has not. */
  load(): void {
    if (this.#running === undefined) this.#post({ kind: 'load' });
  }

  /** The answer comes in the shared memory. */
  requestMasks(batch: number, rows: readonly MaskRequest[]): void {
    this.#post({ kind: 'masks', batch, rows });
  }

  release(request: string): void {
    if (this.#running !== undefined) this.#post({ kind: 'release', request });
  }

  /** Handles arrived answers and checks the time: a thread that never sleeps receives them here alone. */
  poll(): void {
    const { port } = this.#running ?? {};
    for (let next = port && receiveMessageOnPort(port); next !== undefined; next = port && receiveMessageOnPort(port))
      this.#onAnswer(next.message);
    if (performance.now() >= this.#deadlineMs)
      this.fail(`it takes longer than ${this.#options.compileMsMax / 1000} s to compile`);
  }

  /** Ends the thread: its compilation fails, and the others start again in another thread. */
  fail(why: string): void {
    const { worker, port } = this.#running ?? {};
    this.#running = undefined;
    port?.close();
    void worker?.terminate();
    this.#options.onLost?.();
    this.#finish(why, false);
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    for (const { done } of this.#queue.splice(0)) done(closedFault, false);
    await this.#running?.worker.terminate();
  }

  #onAnswer(answer: FromGrammarThread): void {
    const hasVocabulary = answer.kind === 'loaded' || answer.fault === undefined;
    if (this.#running !== undefined) this.#running.hasVocabulary ||= hasVocabulary;
    if (answer.kind === 'compiled' && this.#queue[0]?.number === answer.number) this.#finish(answer.fault, true);
  }

  #finish(fault: string | undefined, isFinal: boolean): void {
    const first = this.#queue.shift();
    clearTimeout(this.#timer);
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    first?.done(fault, isFinal);
    this.#startFirst();
  }

  #startFirst(): void {
    const [first] = this.#queue;
    if (first === undefined) return;
    const { number, grammar, keeps } = first;
    this.#post({ kind: 'compile', number, grammar, keeps });
    const { compileMsMax, vocabularyMs = defaultVocabularyMs } = this.#options;
    const ms = compileMsMax + (this.#running?.hasVocabulary === true ? 0 : vocabularyMs);
    this.#deadlineMs = performance.now() + ms;
    this.#timer = setTimeout(() => this.poll(), ms + 1).unref();
  }

  #post(message: ToGrammarThread): void {
    if (this.#closed) return;
    this.#running ??= this.#start();
    this.#running.port.postMessage(message);
  }

  #start(): RunningThread {
    const { entry, model, memory } = this.#options;
    const { port1: port, port2 } = new MessageChannel();
    const data: GrammarThreadData = { model, memory };
    const worker = new Worker(entry, { workerData: { ...data, port: port2 }, transferList: [port2] });
    port.on('message', (answer: FromGrammarThread) => this.#onAnswer(answer));
    const onEnd = (why: string): void => {
      if (this.#running?.worker === worker && !this.#closed) this.fail(why);
    };
    worker.once('error', (error) => onEnd(`its thread failed: ${error.message}`));
    worker.once('exit', () => onEnd('its thread ended'));
    // An idle thread does not keep the process alive.
    worker.unref();
    port.unref();
    return { worker, port, hasVocabulary: false };
  }
}
