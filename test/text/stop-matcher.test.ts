// The stop matcher against a search over the whole text.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { StopMatcher } from '../../src/text/stop-matcher.ts';
import { anyText, cut } from './arbitraries.ts';

/** The stop string that ends first; of several with the same end, the longest. */
function naiveStop(text: string, stops: readonly string[]): { before: string; stopped: string | undefined } {
  for (let end = 1; end <= text.length; end++) {
    const ending = stops.filter((stop) => text.slice(0, end).endsWith(stop)).sort((a, b) => b.length - a.length);
    const [stop] = ending;
    if (stop !== undefined) return { before: text.slice(0, end - stop.length), stopped: stop };
  }
  return { before: text, stopped: undefined };
}

// Few letters, so that stop strings overlap, nest and nearly match often.
const abText = fc.array(fc.constantFrom('a', 'b', 'c'), { maxLength: 60 }).map((letters) => letters.join(''));
const abStops = fc.array(
  fc.array(fc.constantFrom('a', 'b', 'c'), { minLength: 1, maxLength: 6 }).map((letters) => letters.join('')),
  { maxLength: 4 },
);

describe('StopMatcher', () => {
  test('finds what a search of the whole text finds, for any split of the text', () => {
    fc.assert(
      fc.property(abText, abStops, fc.infiniteStream(fc.nat(5)), (text, stops, sizes) => {
        const matcher = new StopMatcher(stops);
        const { before, stopped } = naiveStop(text, stops);
        let emitted = '';
        for (const part of cut(text, sizes)) {
          emitted += matcher.push(part).emit;
          // No text of a stop string has been emitted.
          expect(before.startsWith(emitted)).toBe(true);
          expect(matcher.emittedChars).toBe(emitted.length);
        }
        emitted += matcher.flush().emit;
        expect({ before: emitted, stopped: matcher.stopped }).toEqual({ before, stopped });
      }),
      { numRuns: 500 },
    );
  });

  test('holds only text that may begin a stop string', () => {
    fc.assert(
      fc.property(abText, abStops, (text, stops) => {
        fc.pre(naiveStop(text, stops).stopped === undefined);
        const { emit } = new StopMatcher(stops).push(text);
        const held = text.slice(emit.length);
        expect(text.startsWith(emit)).toBe(true);
        expect(held === '' || stops.some((stop) => stop.startsWith(held))).toBe(true);
      }),
    );
  });

  test('without a match the text passes unchanged', () => {
    fc.assert(
      fc.property(anyText, (text) => {
        const matcher = new StopMatcher(['\u0000never\u0000there\u0000']);
        expect(matcher.push(text).emit + matcher.flush().emit).toBe(text);
      }),
    );
  });

  test('reports the stop string once and emits nothing after it', () => {
    const matcher = new StopMatcher(['\n\n', 'User:']);
    expect(matcher.push('Paris.\nUs')).toEqual({ emit: 'Paris.\n', stopped: undefined });
    expect(matcher.push('er: next')).toEqual({ emit: '', stopped: 'User:' });
    expect(matcher.push('more')).toEqual({ emit: '', stopped: 'User:' });
    expect(matcher.flush()).toEqual({ emit: '', stopped: 'User:' });
  });

  test('an empty stop string is refused', () => {
    expect(() => new StopMatcher(['a', ''])).toThrow('Cannot match stop strings: one of them is empty');
  });
});
