// Figures of admission policies from the answers that clients received.
import { expect, it } from 'vitest';
import type { TimedAnswer } from '../../../src/bench/http/client.ts';
import { figuresOf } from '../../../src/bench/overload.ts';

const answered: TimedAnswer = {
  ...{ status: 200, statusMs: 1, ttftMs: 90, decodeMs: 100, gapsMs: Array.from({ length: 20 }, () => 5) },
  ...{ outputTokens: 21, promptTokens: 10, cachedTokens: 0, errorCode: undefined, complete: true },
};

it('counts answers by both bounds of their class, refusals by place, and prompt tokens that were computed in vain', () => {
  const bounds = { chat: { ttftMs: 100, tbtMs: 10 }, report: { ttftMs: 1_000, tbtMs: 10 } };
  const classes = { chat: { promptTokens: 10 }, report: { promptTokens: 300 } };
  // Two of 20 gaps are the longest 10 %.
  const slowGaps = answered.gapsMs.with(3, 12).with(7, 9);
  const refusedAtDecode = { ...answered, complete: false, gapsMs: [], errorCode: 'kv_overloaded' };
  const figures = figuresOf('early', bounds, classes, [
    ['chat', answered],
    ['chat', { ...answered, ttftMs: 101 }],
    ['chat', { ...answered, status: 429, complete: false, ttftMs: undefined }],
    ['report', { ...answered, ttftMs: 999 }],
    ['report', { ...answered, gapsMs: slowGaps }],
    ['report', refusedAtDecode],
    ['report', { ...refusedAtDecode, errorCode: 'engine_failed' }],
    ['report', { ...answered, status: undefined, complete: false }],
  ]);
  expect(figures).toEqual({
    policy: 'early',
    chat: { sent: 3, withinSlo: 1, late: 1, refused: 1, refusedAtDecode: 0, failed: 0 },
    report: { sent: 5, withinSlo: 1, late: 1, refused: 0, refusedAtDecode: 1, failed: 2 },
    ...{ wastedPromptTokens: 300, latePromptTokens: 310 },
  });
});
