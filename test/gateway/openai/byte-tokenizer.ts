// A tokenizer for gateway tests: one token for each byte, and 256 for end of sequence.
import type { Tokenizer } from '../../../src/text/tokenizer.ts';

const none = new Uint8Array();

export const byteTokenizer: Tokenizer = {
  vocabSize: 257,
  bosId: undefined,
  eosIds: [256],
  specialIds: new Set([256]),
  addsSpacePrefix: false,
  encode: (text) => [...new TextEncoder().encode(text)],
  decodeBytes: (id) => (id < 256 ? Uint8Array.of(id) : none),
  tokenBytes: (id) => (id < 256 ? Uint8Array.of(id) : new TextEncoder().encode('<eos>')),
  isSpecial: (id) => id === 256,
};

export const bytesOf = (text: string): number[] => [...new TextEncoder().encode(text)];
