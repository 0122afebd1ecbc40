// Splits server-sent events, as they arrive in pieces, into the payloads of their `data:` lines.

export class SseLines {
  #rest = '';

  /** Payloads that the piece completes. */
  push(text: string): string[] {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop() ?? '';
    return lines.filter((line) => line.startsWith('data:')).map((line) => line.slice('data:'.length).trim());
  }
}
