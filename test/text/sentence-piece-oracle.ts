// A naive SentencePiece merge as the reference, and random vocabularies to compare with it.

import fc from 'fast-check';
import { type GgufTokenizerData, tokenType } from '../../src/text/vocabulary/gguf-tokenizer-data.ts';

const byteTokens = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);

/**
 * Merges the adjacent pair with the best-scoring token, leftmost first, until none is left; the rest falls back to
 * bytes.
 */
export function naiveSentencePiece(data: GgufTokenizerData, text: string): number[] {
  if (text === '') return [];
  const parts = [...` ${text}`.replaceAll(' ', '\u2581')];
  const idOf = (part: string) => data.tokens.lastIndexOf(part);
  for (;;) {
    let best = -1;
    for (let i = 0; i + 1 < parts.length; i++) {
      const id = idOf(`${parts[i]}${parts[i + 1]}`);
      if (id < 0) continue;
      const bestId = best < 0 ? -1 : idOf(`${parts[best]}${parts[best + 1]}`);
      if (bestId < 0 || (data.scores?.[id] ?? 0) > (data.scores?.[bestId] ?? 0)) best = i;
    }
    if (best < 0) break;
    parts.splice(best, 2, `${parts[best]}${parts[best + 1]}`);
  }
  return parts.flatMap((part) => {
    const id = idOf(part);
    return id >= 0 ? [id] : [...new TextEncoder().encode(part)].map((byte) => idOf(byteTokens[byte] as string));
  });
}

const unit = fc.constantFrom('a', 'b', '\u2581', 'é', '😀');
const piece = fc.string({ unit, minLength: 1, maxLength: 5 });
const score = fc.integer({ min: -5, max: 0 });

/** Few letters and scores, so that merges compete and tie. Some vocabularies have spaces inside a token. */
export const sentencePieceVocabulary: fc.Arbitrary<GgufTokenizerData> = fc
  .array(fc.tuple(piece, score), { maxLength: 30 })
  .map((entries) => ({
    model: 'llama',
    tokens: [...byteTokens, ...entries.map(([text]) => text)],
    scores: [...byteTokens.map(() => 0), ...entries.map(([, value]) => value)],
    tokenTypes: [...byteTokens.map(() => tokenType.byte), ...entries.map(() => tokenType.normal)],
  }));
