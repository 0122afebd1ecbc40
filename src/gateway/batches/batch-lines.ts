// The input of a batch (JSONL, one request per line) and its output (one response per line).
import { z } from 'zod';

export const batchUrls = ['/v1/chat/completions', '/v1/completions'] as const;
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

/** Returns all lines, or their errors. */
export function readLines(bytes: Uint8Array, endpoint: BatchUrl): readonly BatchLine[] | readonly LineError[] {
  const texts = new TextDecoder().decode(bytes).split('\n');
  const numbered = texts.map((text, i) => ({ text, line: i + 1 })).filter(({ text }) => text.trim() !== '');
  if (numbered.length === 0 || numbered.length > linesMax)
    return [fault('invalid_file', `it has ${numbered.length} requests; a batch has 1 to ${linesMax}`, null, null)];
  const lines: BatchLine[] = [];
  const errors: LineError[] = [];
  const seen = new Set<string>();
  for (const { text, line } of numbered) {
    const read = readLine(text, line, endpoint);
    if ('code' in read) errors.push(read);
    else if (seen.has(read.customId))
      errors.push(fault('duplicate_custom_id', `custom_id '${read.customId}' is used twice`, 'custom_id', line));
    else lines.push(read);
    if (!('code' in read)) seen.add(read.customId);
    if (errors.length === errorsMax) break;
  }
  return errors.length > 0 ? errors : lines;
}

export function isErrors(read: readonly BatchLine[] | readonly LineError[]): read is readonly LineError[] {
  return read[0] !== undefined && 'code' in read[0];
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
