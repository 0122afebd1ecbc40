// Hand-offs between two external engines: each message lost, late and doubled, in both orders.
import { describe, expect, it } from 'vitest';
import { HandOff, type HandOffEffect, type HandOffEvent, type HandOffOrder } from '../../../src/core/fleet/hand-off.ts';

const prefilled = { kind: 'prefilled', params: 'p' } as const;
const prefillFailed = { kind: 'prefillFailed', why: 'p' } as const;
const decoding = { kind: 'decoding' } as const;
const finished = { kind: 'decodeEnded', why: undefined } as const;
const broken = { kind: 'decodeEnded', why: 'w' } as const;
const cancelled = { kind: 'cancelled' } as const;

function nameOf(effect: HandOffEffect<string>): string {
  if (effect.kind === 'decode') return `decode ${effect.alone ? 'alone' : (effect.params ?? 'both')}`;
  return effect.kind === 'release' && effect.by === 'prefill' ? 'release of prefill' : effect.kind;
}
const brief = (effects: readonly HandOffEffect<string>[]) => effects.map(nameOf).join(', ');

/** Effects of the start and of each event. */
function run(order: HandOffOrder, ...events: readonly HandOffEvent<string>[]): string[] {
  const handOff = new HandOff<string>(order);
  return [brief(handOff.start()), ...events.map((event) => brief(handOff.step(event)))];
}

describe('HandOff, one engine after the other', () => {
  it('decodes with the parameters of the prefill', () => {
    expect(run('sequential', prefilled, decoding, finished)).toEqual(['prefill', 'reportPrefilled, decode p', '', '']);
  });

  it('decodes alone when the prefill is refused, breaks, or answers without parameters', () => {
    expect(run('sequential', prefillFailed)).toEqual(['prefill', 'reportPrefilled, decode alone']);
    expect(run('sequential', { kind: 'prefilled', params: undefined })[1]).toBe('reportPrefilled, decode alone');
  });

  it('releases the attempt when the decode engine refuses or breaks', () => {
    expect(run('sequential', prefilled, broken)[2]).toBe('release');
    expect(run('sequential', prefilled, decoding, broken)[3]).toBe('release');
  });

  it('cancels the call that runs', () => {
    expect(run('sequential', cancelled)[1]).toBe('cancelPrefill');
    expect(run('sequential', prefilled, cancelled)[2]).toBe('cancelDecode');
  });

  it('ignores doubled and late messages', () => {
    expect(run('sequential', prefilled, prefilled, prefillFailed, decoding, decoding, finished, finished)).toEqual([
      ...['prefill', 'reportPrefilled, decode p', '', '', '', '', '', ''],
    ]);
    expect(run('sequential', decoding, broken)).toEqual(['prefill', '', '']);
    expect(run('sequential', cancelled, prefilled, prefillFailed, decoding, broken, cancelled).slice(2).join('')).toBe(
      '',
    );
  });
});

describe('HandOff, both engines at once after a query', () => {
  const queried = { kind: 'queried', params: 'q' } as const;
  const unnamed = { kind: 'queried', params: undefined } as const;

  it('calls both engines with what the bootstrap server states', () => {
    expect(run('queried', queried, prefilled, decoding, finished)).toEqual([
      ...['query', 'prefill, decode q', 'reportPrefilled', '', ''],
    ]);
    expect(run('queried', queried, decoding, finished)).toEqual(['query', 'prefill, decode q', 'reportPrefilled', '']);
  });

  it('decodes alone when the query is lost, and ignores its answer when it is late', () => {
    expect(run('queried', unnamed, queried, decoding, finished)).toEqual([
      ...['query', 'reportPrefilled, decode alone', '', '', ''],
    ]);
    expect(run('queried', unnamed, broken)[2]).toBe('release');
  });

  it('releases the attempt when either engine fails before the first tokens', () => {
    expect(run('queried', queried, prefillFailed)[2]).toBe('reportPrefilled, cancelDecode, release of prefill');
    expect(run('queried', queried, broken)[2]).toBe('cancelPrefill, release');
    expect(run('queried', queried, prefilled, broken)[3]).toBe('release');
    expect(run('queried', queried, decoding, prefillFailed, finished).slice(3)).toEqual(['', '']);
  });

  it('cancels what runs, and ignores doubled and early messages', () => {
    expect(run('queried', cancelled, queried)).toEqual(['query', '', '']);
    expect(run('queried', queried, cancelled, prefilled, decoding)).toEqual([
      ...['query', 'prefill, decode q', 'cancelPrefill, cancelDecode', '', ''],
    ]);
    expect(run('queried', prefilled, prefillFailed, decoding, broken, queried, queried, prefilled, prefilled)).toEqual([
      ...['query', '', '', '', '', 'prefill, decode q', '', 'reportPrefilled', ''],
    ]);
  });
});

describe('HandOff, both engines at once', () => {
  const start = 'prefill, decode both';

  it('reports the prefill by its answer, or by the first tokens if the answer is late or lost', () => {
    expect(run('concurrent', prefilled, decoding, finished)).toEqual([start, 'reportPrefilled', '', '']);
    expect(run('concurrent', decoding, prefilled, finished)).toEqual([start, 'reportPrefilled', '', '']);
    expect(run('concurrent', decoding, finished)).toEqual([start, 'reportPrefilled', '']);
  });

  it('releases the attempt when the prefill fails before the first tokens, and goes on when it fails after them', () => {
    expect(run('concurrent', prefillFailed)[1]).toBe('reportPrefilled, cancelDecode, release of prefill');
    expect(run('concurrent', decoding, prefillFailed, finished)).toEqual([start, 'reportPrefilled', '', '']);
  });

  it('ends the prefill when the decode engine fails', () => {
    expect(run('concurrent', broken)[1]).toBe('cancelPrefill, release');
    expect(run('concurrent', prefilled, broken)[2]).toBe('release');
  });

  it('cancels both calls, and ignores doubled and late messages', () => {
    expect(run('concurrent', cancelled)[1]).toBe('cancelPrefill, cancelDecode');
    expect(run('concurrent', prefilled, prefilled, decoding, decoding, finished, broken).slice(2).join('')).toBe('');
  });
});
