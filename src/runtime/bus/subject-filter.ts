// What one end of a bus wants to hear: subjects, and patterns with wildcards.
import type { Subject } from './bus.ts';

export class SubjectFilter {
  readonly #exact = new Set<Subject>();
  readonly #wild = new Map<Subject, readonly string[]>();

  add(pattern: Subject): void {
    const words = pattern.split('.');
    if (words.some(isWild)) this.#wild.set(pattern, words);
    else this.#exact.add(pattern);
  }

  remove(pattern: Subject): void {
    this.#exact.delete(pattern);
    this.#wild.delete(pattern);
  }

  want(subject: Subject): boolean {
    if (this.#exact.has(subject)) return true;
    if (this.#wild.size === 0) return false;
    const words = subject.split('.');
    for (const pattern of this.#wild.values()) if (matches(pattern, words)) return true;
    return false;
  }
}

function isWild(word: string): boolean {
  return word === '*' || word === '>';
}

export function matches(pattern: readonly string[], words: readonly string[]): boolean {
  for (const [i, wanted] of pattern.entries()) {
    if (wanted === '>') return words.length > i;
    if (i >= words.length || (wanted !== '*' && wanted !== words[i])) return false;
  }
  return pattern.length === words.length;
}
