// The progress of a pull: a redrawn bar on a terminal, and occasional lines in a log.
import { describe, expect, it } from 'vitest';
import { PullProgress } from '../../src/cli/serve/model/pull-progress.ts';

function watched(output: { readonly isTTY?: boolean; readonly columns?: number }) {
  let written = '';
  let nowMs = 1000;
  const write = (text: string): void => {
    written += text;
  };
  const progress = new PullProgress('org/tiny', { ...output, write }, () => nowMs);
  const at = (ms: number, bytes: number): void => {
    nowMs = 1000 + ms;
    progress.show({ kind: 'bytes', bytes });
  };
  return { progress, at, written: () => written };
}

describe('the progress of a pull', () => {
  it('in a log is a line at the start, every 15 s, and at the end', () => {
    const { progress, at, written } = watched({});
    progress.show({ kind: 'started', files: 3, bytesTotal: 4e9 });
    for (let s = 1; s <= 40; s++) at(s * 1000, s * 1e8);
    progress.show({ kind: 'retrying', path: 'a.gguf', reason: 'the connection was cut', delayMs: 500 });
    progress.show({ kind: 'finished' });
    expect(written().split('\n')).toEqual([
      'Downloading org/tiny: 3 files, 4.00 GB',
      '  1.50 GB of 4.00 GB (37 %), 100.0 MB/s, 25 s left',
      '  3.00 GB of 4.00 GB (75 %), 100.0 MB/s, 10 s left',
      'a.gguf: the connection was cut; trying again in 0.5 s',
      'Downloaded org/tiny in 40 s',
      '',
    ]);
  });

  it('on a terminal is one line, drawn at most ten times a second and never wider', () => {
    const { progress, at, written } = watched({ isTTY: true, columns: 60 });
    progress.show({ kind: 'started', files: 1, bytesTotal: 1e6 });
    for (let ms = 10; ms <= 1000; ms += 10) at(ms, ms * 1000);
    progress.show({ kind: 'finished' });
    const drawn = written().split('\r').slice(1, -1);
    expect(drawn).toHaveLength(10);
    expect(drawn[4]).toMatch(/^█{12}░{12} 500 kB of 1.0 MB \(50 %\), 1.0 MB/);
    for (const line of drawn) expect([...line.replace('\u001b[K', '')].length).toBeLessThan(60);
    expect(written().endsWith('\r\u001b[KDownloaded org/tiny in 1.0 s\n')).toBe(true);
  });

  it('of a restarted or stalled file shows no remaining time', () => {
    const { progress, at, written } = watched({});
    progress.show({ kind: 'started', files: 1, bytesTotal: 1e9 });
    at(100, 5e8);
    at(16_000, 0);
    expect(written()).toContain('\n  0 kB of 1.00 GB (0 %)\n');
  });
});
