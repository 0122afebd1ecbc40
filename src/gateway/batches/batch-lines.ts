// The input of a batch (JSONL, one request per line) and its output (one response per line).
import { z } from 'zod';
import type { StoredBytes } from '../http/stored-bytes.ts';

export const batchUrls = [
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/responses',
  '/v1/embeddings',
  '/v1/rerank',
] as const;
export type BatchUrl = (typeof batchUrls)[number];

export interface BatchLine {
  readonly customId: string;
  readonly body: unknown;
}

/** An error in an input, in the shape of the protocol; `line` counts from 1. */
export interface LineError {
  readonly code: string;
  readonly message: string;
  readonly param: string | null;
  readonly line: number | null;
}

export const linesMax = 10_000;
/** Maximum number of reported errors. */
const errorsMax = 50;

const lineSchema = z.strictObject({
  custom_id: z.string().min(1).max(512),
  method: z.literal('POST'),
  url: z.string(),
  body: z.record(z.string(), z.unknown()),
});

/** Returns the number of requests, or the errors of the lines. @throws Error if the bytes cannot be read */
export async function checkInput(bytes: StoredBytes, endpoint: BatchUrl): Promise<number | readonly LineError[]> {
  let requests = 0;
  const errors: LineError[] = [];
  const seen = new Set<string>();
  for await (const { text, line } of linesOf(bytes)) {
    if (text.trim() === '') continue;
    requests++;
    // The rest is only counted.
    if (errors.length === errorsMax || requests > linesMax) continue;
    const read = readLine(text, line, endpoint);
    if ('code' in read) errors.push(read);
    else if (seen.has(read.customId))
      errors.push(fault('duplicate_custom_id', `custom_id '${read.customId}' is used twice`, 'custom_id', line));
    else seen.add(read.customId);
  }
  if (requests === 0 || requests > linesMax)
    return [fault('invalid_file', `it has ${requests} requests; a batch has 1 to ${linesMax}`, null, null)];
  return errors.length > 0 ? errors : requests;
}

const newline = 10;
/** What is read at once. */
const pieceBytes = 64 << 10;

interface TextLine {
  readonly text: string;
  /** Counts from 1 at the first line that is read. */
  readonly line: number;
  /** Where the next line starts. */
  readonly end: number;
}

/** The lines from byte `start` on, at which a line begins. Reads each piece after the lines before it are taken. @throws Error if it cannot be read */
export async function* linesOf(bytes: StoredBytes, start = 0): AsyncGenerator<TextLine, undefined> {
  let line = 0;
  /** Of a line that continues in the next piece. */
  let parts: Uint8Array[] = [];
  for (let at = start; at < bytes.length; ) {
    const piece = await bytes.read(at, Math.min(at + pieceBytes, bytes.length));
    let next = 0;
    for (let found = piece.indexOf(newline); found >= 0; found = piece.indexOf(newline, next)) {
      parts.push(piece.subarray(next, found));
      next = found + 1;
      yield { text: textOf(parts), line: ++line, end: at + next };
      parts = [];
    }
    if (next < piece.length) parts.push(piece.subarray(next));
    at += piece.length;
  }
  if (parts.length > 0) yield { text: textOf(parts), line: ++line, end: bytes.length };
  return undefined;
}

const decoder = new TextDecoder();

function textOf(parts: readonly Uint8Array[]): string {
  return decoder.decode(Buffer.concat(parts));
}

function readLine(text: string, line: number, endpoint: BatchUrl): BatchLine | LineError {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    return fault('invalid_json_line', 'it is not valid JSON', null, line);
  }
  const parsed = lineSchema.safeParse(json);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    const param = issue?.path.join('.') || null;
    return fault('invalid_request', `'${param ?? 'line'}': ${issue?.message ?? 'invalid'}`, param, line);
  }
  const { custom_id: customId, url, body } = parsed.data;
  if (url !== endpoint) return fault('invalid_url', `its url is not that of the batch, ${endpoint}`, 'url', line);
  return { customId, body };
}

function fault(code: string, message: string, param: string | null, line: number | null): LineError {
  const where = line === null ? 'Cannot read batch' : `Cannot read line ${line}`;
  return { code, message: `${where}: ${message}`, param, line };
}

/** A line of the output. */
export function answerLine(id: string, customId: string, status: number, requestId: string, body: unknown): string {
  const response = { status_code: status, request_id: requestId, body };
  return `${JSON.stringify({ id, custom_id: customId, response, error: null })}\n`;
}
