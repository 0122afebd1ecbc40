// Traces in the format of Azure's LLM inference data: time stamp, context tokens, generated tokens; no block ids.
import { shown, TraceError, type TraceRequest } from './request.ts';

export const azureHeader = 'TIMESTAMP,ContextTokens,GeneratedTokens';

const stampPattern = /^(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?$/;
const noBlocks = new Int32Array(0);

/** Arrivals count from the first row; `startUs` is its time, undefined for the first row itself. */
export function parseAzureLine(
  text: string,
  line: number,
  index: number,
  startUs: number | undefined,
): { readonly request: TraceRequest; readonly startUs: number } {
  const cells = text.split(',');
  if (cells.length !== 3) throw new TraceError(line, `${cells.length} cells: 3 expected: ${shown(text)}`);
  const [stamp, context, generated] = cells as [string, string, string];
  const atUs = stampUs(stamp, line);
  const start = startUs ?? atUs;
  if (atUs < start) throw new TraceError(line, `TIMESTAMP is ${shown(stamp)}: before that of the first row`);
  const request = {
    index,
    arrivalUs: atUs - start,
    inputTokens: tokens('ContextTokens', context, line),
    outputTokens: tokens('GeneratedTokens', generated, line),
    blocks: noBlocks,
  };
  return { request, startUs: start };
}

function tokens(field: string, text: string, line: number): number {
  const value = /^\d{1,15}$/.test(text) ? Number(text) : 0;
  if (value < 1) throw new TraceError(line, `${field} is ${shown(text)}: a whole number of at least 1 expected`);
  return value;
}

/** Microseconds from 1970 to a UTC time stamp. */
function stampUs(text: string, line: number): number {
  const match = stampPattern.exec(text);
  const [year, month, day, hour, minute, second] = (match ?? []).slice(1, 7).map(Number);
  if (match === null || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) {
    throw new TraceError(line, `TIMESTAMP is ${shown(text)}: YYYY-MM-DD HH:MM:SS.fffffff expected`);
  }
  const seconds = ((daysSince1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
  const fraction = `${match[7] ?? ''}000000`;
  return seconds * 1_000_000 + Number(fraction.slice(0, 6));
}

/** Proleptic Gregorian calendar; years begin in March, so that the leap day is the last day. */
function daysSince1970(year: number, month: number, day: number): number {
  const y = month > 2 ? year : year - 1;
  const monthFromMarch = (month + 9) % 12;
  const dayOfYear = Math.floor((153 * monthFromMarch + 2) / 5) + day - 1;
  return 365 * y + Math.floor(y / 4) - Math.floor(y / 100) + Math.floor(y / 400) + dayOfYear - 719_468;
}
