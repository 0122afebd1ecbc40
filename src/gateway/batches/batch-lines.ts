// The input of a batch (JSONL, one request per line) and its output (one response per line).
import { z } from 'zod';

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

/**
 * The requests of a batch: places of lines in the uploaded bytes, which batches of one file share. A line is parsed
 * when its request starts.
 */
export class BatchInput {
  readonly #bytes: Uint8Array;
  /** Start and end of each line. */
  readonly #spans: readonly (readonly [start: number, end: number])[];

  constructor(bytes: Uint8Array, spans: readonly (readonly [number, number])[]) {
    this.#bytes = bytes;
    this.#spans = spans;
  }

  get length(): number {
    return this.#spans.length;
  }

  /** Undefined behind the last line. */
  at(index: number): BatchLine | undefined {
    const span = this.#spans[index];
    if (span === undefined) return undefined;
    const line: { custom_id: string; body: unknown } = JSON.parse(textOf(this.#bytes, span));
    return { customId: line.custom_id, body: line.body };
  }

  /** The lines whose custom ids are not among these. */
  without(customIds: { has(customId: string): boolean }): BatchInput {
    const left = this.#spans.filter((_, i) => !customIds.has(this.at(i)?.customId ?? ''));
    return new BatchInput(this.#bytes, left);
  }
}

export const noInput = new BatchInput(new Uint8Array(), []);

/** Returns the input, or the errors of its lines. */
export function readInput(bytes: Uint8Array, endpoint: BatchUrl): BatchInput | readonly LineError[] {
  const filled = linesOf(bytes).filter(({ text }) => text.trim() !== '');
  if (filled.length === 0 || filled.length > linesMax)
    return [fault('invalid_file', `it has ${filled.length} requests; a batch has 1 to ${linesMax}`, null, null)];
  const errors: LineError[] = [];
  const seen = new Set<string>();
  for (const { text, line } of filled) {
    const read = readLine(text, line, endpoint);
    if ('code' in read) errors.push(read);
    else if (seen.has(read.customId))
      errors.push(fault('duplicate_custom_id', `custom_id '${read.customId}' is used twice`, 'custom_id', line));
    else seen.add(read.customId);
    if (errors.length === errorsMax) break;
  }
  if (errors.length > 0) return errors;
  return new BatchInput(
    bytes,
    filled.map(({ span }) => span),
  );
}

const newline = 10;

function linesOf(bytes: Uint8Array) {
  const lines: { span: readonly [number, number]; text: string; line: number }[] = [];
  for (let start = 0; start < bytes.length; ) {
    const found = bytes.indexOf(newline, start);
    const end = found < 0 ? bytes.length : found;
    lines.push({ span: [start, end], text: textOf(bytes, [start, end]), line: lines.length + 1 });
    start = end + 1;
  }
  return lines;
}

const decoder = new TextDecoder();

function textOf(bytes: Uint8Array, [start, end]: readonly [number, number]): string {
  return decoder.decode(bytes.subarray(start, end));
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
