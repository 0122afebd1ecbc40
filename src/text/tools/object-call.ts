// The members of a call that is a JSON object, in any order.

/** Receives a name, then pieces of arguments. */
interface ObjectCallSink {
  begin(name: string): void;
  add(text: string): void;
}

const nameCharactersMax = 128;

/** Arguments before the name are kept until the name is there. */
export class ObjectCall {
  readonly #sink: ObjectCallSink;
  readonly #isKnown: (name: string) => boolean;
  #state: 'none' | 'streamed' | 'collected' | 'done' = 'none';
  /** Arguments that are no object, to be converted at their end. */
  #collected = '';
  #early = '';
  hasName = false;

  constructor(sink: ObjectCallSink, isKnown: (name: string) => boolean) {
    this.#sink = sink;
    this.#isKnown = isKnown;
  }

  /** False if no call has this name. */
  setName(name: string): boolean {
    if (name === '' || name.length > nameCharactersMax || !this.#isKnown(name)) return false;
    this.hasName = true;
    this.#sink.begin(name);
    if (this.#early !== '') this.#sink.add(this.#early);
    return true;
  }

  /** @param first the first character of the arguments */
  beginArguments(first: string): void {
    if (this.#state === 'none') this.#state = first === '{' || first === '[' ? 'streamed' : 'collected';
  }

  addArguments(text: string): void {
    if (this.#state === 'streamed') this.#write(text);
    else if (this.#state === 'collected') this.#collected += text;
  }

  endArguments(): void {
    if (this.#state === 'collected') this.#write(converted(this.#collected));
    this.#state = 'done';
  }

  finish(): void {
    if (this.#state === 'none') this.#write('{}');
    else if (this.#state === 'collected') this.endArguments();
  }

  #write(text: string): void {
    if (this.hasName) this.#sink.add(text);
    else this.#early += text;
  }
}

/** Arguments inside a JSON string are unpacked, and null is no arguments. */
function converted(raw: string): string {
  if (raw === 'null') return '{}';
  try {
    const value: unknown = JSON.parse(raw);
    return typeof value === 'string' ? value : raw;
  } catch {
    return raw;
  }
}
