// UTF-8 without platform types: an encoder, and a streaming decoder.

const replacement = 0xfffd;
const isHigh = (unit: number) => unit >= 0xd800 && unit < 0xdc00;
const isLow = (unit: number) => unit >= 0xdc00 && unit < 0xe000;
// fromCharCode takes the units as arguments, so a call is limited to a small number.
const unitsPerCall = 4096;

/** The text with every unpaired surrogate replaced by U+FFFD. */
export function toWellFormed(text: string): string {
  return /\p{Surrogate}/u.test(text) ? text.replace(/\p{Surrogate}/gu, '\ufffd') : text;
}

/** UTF-8 bytes; an unpaired surrogate is encoded as U+FFFD. */
export function encodeUtf8(text: string): Uint8Array {
  const bytes = new Uint8Array(text.length * 3);
  let at = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0x80) {
      bytes[at++] = unit;
      continue;
    }
    if (unit < 0x800) {
      bytes[at++] = 0xc0 | (unit >> 6);
      bytes[at++] = 0x80 | (unit & 63);
      continue;
    }
    let code = unit;
    const low = isHigh(unit) ? text.charCodeAt(i + 1) : 0;
    if (isLow(low)) {
      code = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
      i++;
      bytes[at++] = 0xf0 | (code >> 18);
      bytes[at++] = 0x80 | ((code >> 12) & 63);
    } else {
      if (isHigh(unit) || isLow(unit)) code = replacement;
      bytes[at++] = 0xe0 | (code >> 12);
    }
    bytes[at++] = 0x80 | ((code >> 6) & 63);
    bytes[at++] = 0x80 | (code & 63);
  }
  return bytes.slice(0, at);
}

/** Decodes a byte stream. Each maximal invalid sequence becomes one U+FFFD, as in the WHATWG decoder. */
export class Utf8Decoder {
  #code = 0;
  #missing = 0;
  // Bounds of the next continuation byte; they exclude overlong forms, surrogates and codes above U+10FFFF.
  #low = 0x80;
  #high = 0xbf;
  #units: number[] = [];
  #text = '';

  /** Text that is final after these bytes; an incomplete character at the end is held. */
  push(bytes: Uint8Array): string {
    for (const byte of bytes) this.#byte(byte);
    return this.#take();
  }

  /** Ends the stream: a held incomplete character becomes U+FFFD. */
  flush(): string {
    if (this.#missing > 0) this.#emit(replacement);
    this.#missing = 0;
    return this.#take();
  }

  /** Whether an incomplete character is held. */
  get pending(): boolean {
    return this.#missing > 0;
  }

  #byte(byte: number): void {
    if (this.#missing > 0) {
      if (byte >= this.#low && byte <= this.#high) {
        this.#code = (this.#code << 6) | (byte & 63);
        this.#low = 0x80;
        this.#high = 0xbf;
        if (--this.#missing === 0) this.#emit(this.#code);
        return;
      }
      this.#missing = 0;
      this.#emit(replacement);
    }
    this.#lead(byte);
  }

  #lead(byte: number): void {
    this.#low = 0x80;
    this.#high = 0xbf;
    if (byte < 0x80) {
      this.#emit(byte);
    } else if (byte < 0xc2 || byte > 0xf4) {
      this.#emit(replacement);
    } else if (byte < 0xe0) {
      this.#missing = 1;
      this.#code = byte & 31;
    } else if (byte < 0xf0) {
      this.#missing = 2;
      this.#code = byte & 15;
      if (byte === 0xe0) this.#low = 0xa0;
      if (byte === 0xed) this.#high = 0x9f;
    } else {
      this.#missing = 3;
      this.#code = byte & 7;
      if (byte === 0xf0) this.#low = 0x90;
      if (byte === 0xf4) this.#high = 0x8f;
    }
  }

  #emit(code: number): void {
    if (code < 0x10000) this.#units.push(code);
    else this.#units.push(0xd800 + ((code - 0x10000) >> 10), 0xdc00 + ((code - 0x10000) & 0x3ff));
    if (this.#units.length >= unitsPerCall) this.#spill();
  }

  #spill(): void {
    this.#text += String.fromCharCode(...this.#units);
    this.#units.length = 0;
  }

  #take(): string {
    this.#spill();
    const text = this.#text;
    this.#text = '';
    return text;
  }
}

/** Text of complete bytes; invalid sequences become U+FFFD. */
export function decodeUtf8(bytes: Uint8Array): string {
  const decoder = new Utf8Decoder();
  return decoder.push(bytes) + decoder.flush();
}
