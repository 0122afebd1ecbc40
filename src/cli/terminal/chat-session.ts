// A conversation in the terminal: messages from lines, commands, answers that Ctrl-C stops, and a context that fills up.
import { createInterface, type Interface } from 'node:readline';
import type { ChatMessage } from '../../text/template/chat-template.ts';

/** The conversation is longer than the context. */
export class ContextFull extends Error {}

export interface Answering {
  /**
   * Streams the answer to `onText` and resolves with its text; an abort ends it early. Rejects with `ContextFull` if
   * the messages leave too little room for an answer.
   */
  answer(messages: readonly ChatMessage[], signal: AbortSignal, onText: (text: string) => void): Promise<string>;
}

export interface Terminal {
  readonly input: NodeJS.ReadableStream;
  readonly output: NodeJS.WritableStream;
  /** True if a person types: lines that arrive together are then one message. */
  readonly isTyped: boolean;
}

const fence = '"""';
const help = [
  '/help         lists the commands',
  '/reset        starts a new conversation',
  '/exit         ends; so does Ctrl-D',
  `${fence}           begins and ends a message of several lines; a pasted block is one message too`,
  'Ctrl-C        stops an answer',
].join('\n');

/** Pasted lines arrive within this time. */
const pasteMs = 25;

export class ChatSession {
  readonly #answering: Answering;
  readonly #terminal: Terminal;
  readonly #beginning: readonly ChatMessage[];
  #messages: ChatMessage[];
  #stop: AbortController | undefined;

  constructor(answering: Answering, terminal: Terminal, system: string | undefined) {
    this.#answering = answering;
    this.#terminal = terminal;
    this.#beginning = system === undefined ? [] : [{ role: 'system', content: system }];
    this.#messages = [...this.#beginning];
  }

  /** Resolves at the end of the input, or at /exit. */
  async run(): Promise<void> {
    const { input, output, isTyped } = this.#terminal;
    const lines = createInterface({ input, output, terminal: isTyped, prompt: '> ' });
    const interrupt = (): void => this.#interrupt(lines);
    lines.on('SIGINT', interrupt);
    if (!isTyped) process.on('SIGINT', interrupt);
    try {
      lines.prompt();
      for await (const message of messagesOf(lines, isTyped)) {
        if (message === '/exit') return;
        await this.#receive(message);
        lines.prompt();
      }
    } finally {
      process.off('SIGINT', interrupt);
      lines.close();
    }
  }

  #interrupt(lines: Interface): void {
    if (this.#stop !== undefined) this.#stop.abort();
    else if (!this.#terminal.isTyped) lines.close();
    else {
      this.#write('\n(/exit or Ctrl-D ends)\n');
      // Ctrl-U and Ctrl-K empty the line.
      lines.write(null, { ctrl: true, name: 'e' });
      lines.write(null, { ctrl: true, name: 'u' });
      lines.prompt();
    }
  }

  async #receive(message: string): Promise<void> {
    const name = /^\/(\w*)$/.exec(message)?.[1];
    if (name === 'help') this.#write(`${help}\n`);
    else if (name === 'reset') {
      this.#messages = [...this.#beginning];
      this.#write('(a new conversation)\n');
    } else if (name !== undefined) this.#write(`Unknown command '/${name}'; /help lists the commands\n`);
    else if (message.trim() !== '') await this.#ask(message);
  }

  async #ask(content: string): Promise<void> {
    this.#messages.push({ role: 'user', content });
    const stop = new AbortController();
    this.#stop = stop;
    try {
      const answer = await this.#answered(stop.signal);
      this.#messages.push({ role: 'assistant', content: answer });
      this.#write(stop.signal.aborted ? '\n(stopped)\n' : '\n');
    } catch (error) {
      this.#messages.pop();
      this.#write(`\n${error instanceof Error ? error.message : String(error)}\n`);
    } finally {
      this.#stop = undefined;
    }
  }

  /** Leaves out the oldest turns until the conversation fits. @throws Error if the last message alone does not */
  async #answered(signal: AbortSignal): Promise<string> {
    const first = this.#beginning.length;
    for (let dropped = 0; ; ) {
      try {
        return await this.#answering.answer(this.#messages, signal, (text) => this.#write(text));
      } catch (error) {
        if (!(error instanceof ContextFull) || this.#messages.length <= first + 1) throw error;
        // A turn is a message of the user and its answer.
        const turn = this.#messages[first + 1]?.role === 'assistant' ? 2 : 1;
        this.#messages.splice(first, turn);
        dropped++;
        if (dropped === 1) this.#write('(the context is full: the oldest turns are left out)\n');
      }
    }
  }

  #write(text: string): void {
    this.#terminal.output.write(text);
  }
}

/** Messages of a line each, of a block between fences, or of pasted lines. */
async function* messagesOf(lines: Interface, isTyped: boolean): AsyncGenerator<string> {
  let block: string[] | undefined;
  for await (const line of isTyped ? pasted(lines) : lines) {
    if (block === undefined && !line.trimStart().startsWith(fence)) {
      yield line.includes('\n') ? line : line.trim();
      continue;
    }
    const text = block === undefined ? line.trimStart().slice(fence.length) : line;
    block ??= [];
    if (!text.trimEnd().endsWith(fence)) {
      if (text !== '' || block.length > 0) block.push(text);
      continue;
    }
    const last = text.trimEnd().slice(0, -fence.length);
    yield [...block, ...(last === '' ? [] : [last])].join('\n');
    block = undefined;
  }
  if (block !== undefined) yield block.join('\n');
}

/** Lines that arrive together are one text, with the rest of a paste that is still in the line of input. */
async function* pasted(lines: Interface): AsyncGenerator<string> {
  const texts: string[] = [];
  let held: string[] = [];
  let timer: NodeJS.Timeout | undefined;
  let wake = (): void => {};
  let isOpen = true;
  const release = (): void => {
    if (lines.line !== '' && held.length > 0 && isOpen) return;
    if (held.length > 0) texts.push(held.join('\n'));
    held = [];
    wake();
  };
  lines.on('line', (line) => {
    held.push(line);
    clearTimeout(timer);
    timer = setTimeout(release, pasteMs);
  });
  lines.on('close', () => {
    isOpen = false;
    clearTimeout(timer);
    release();
  });
  for (;;) {
    const text = texts.shift();
    if (text !== undefined) yield text;
    else if (!isOpen) return;
    else await new Promise<void>((resolve) => (wake = resolve));
  }
}
