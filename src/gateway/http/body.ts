// Request bodies: read up to a limit as UTF-8 and JSON, or refused with the reason.
import { ApiError } from './errors.ts';

/** Called with the length of a body when it has been read. */
const lengthListeners = new WeakMap<Request, (bytes: number) => void>();

/**
 * Bytes of bodies that are read or handled at once. A body without a stated length counts as the longest one until it has
 * been read.
 */
export class BodyBudget {
  readonly #bytesMax: number;
  readonly #eachMax: number;
  #bytes = 0;

  /** @param eachMax the longest body */
  constructor(bytesMax: number, eachMax: number) {
    this.#bytesMax = bytesMax;
    this.#eachMax = eachMax;
  }

  /** Returns a function that releases the bytes. @throws ApiError 503 over the budget */
  reserve(request: Request): () => void {
    const stated = Number(request.headers.get('content-length') ?? this.#eachMax);
    let bytes = Math.min(Number.isFinite(stated) ? stated : this.#eachMax, this.#eachMax);
    if (this.#bytes + bytes > this.#bytesMax)
      throw new ApiError(503, `Cannot read request: bodies in flight have ${this.#bytes} bytes: retry later`, {
        code: 'bodies_exceeded',
        retryAfterMs: 1_000,
      });
    this.#bytes += bytes;
    lengthListeners.set(request, (length) => {
      const excess = Math.max(0, bytes - length);
      bytes -= excess;
      this.#bytes -= excess;
    });
    return () => {
      lengthListeners.delete(request);
      this.#bytes -= bytes;
    };
  }
}

/**
 * The body as JSON.
 * @throws ApiError 413 over `bytesMax`, 415 for a compressed body, 400 for invalid UTF-8 or JSON, 499 if the client disconnects
 */
export async function readJson(request: Request, bytesMax: number): Promise<unknown> {
  const encoding = request.headers.get('content-encoding') ?? 'identity';
  if (encoding !== 'identity') throw encoded();
  const text = decode(await readBytes(request, bytesMax));
  try {
    return JSON.parse(text);
  } catch {
    throw notJson(`it is not valid JSON: ${text.length} characters`);
  }
}

/** @throws ApiError 413 over `bytesMax`, 499 if the client disconnects */
export async function readBytes(request: Request, bytesMax: number): Promise<Uint8Array> {
  const stated = Number(request.headers.get('content-length') ?? Number.NaN);
  if (stated > bytesMax) throw tooLarge(bytesMax);
  const bytes = await (Number.isNaN(stated) ? readPieces(request, bytesMax) : readWhole(request, bytesMax));
  lengthListeners.get(request)?.(bytes.length);
  return bytes;
}

/** The server ends such a body at its stated length. It is read from the connection, without a stream of the body. */
async function readWhole(request: Request, bytesMax: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(await request.arrayBuffer().catch(throwDisconnected));
  if (bytes.length > bytesMax) throw tooLarge(bytesMax);
  return bytes;
}

async function readPieces(request: Request, bytesMax: number): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of piecesOf(request)) {
    bytes += piece.length;
    if (bytes > bytesMax) throw tooLarge(bytesMax);
    pieces.push(piece);
  }
  return Buffer.concat(pieces, bytes);
}

async function* piecesOf(request: Request): AsyncGenerator<Uint8Array> {
  const reader = request.body?.getReader();
  if (reader === undefined) return;
  for (;;) {
    const read = await reader.read().catch(throwDisconnected);
    if (read.done) return;
    yield read.value;
  }
}

function throwDisconnected(): never {
  throw new ApiError(499, 'Cannot read request: the client disconnected');
}

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw notJson(`it is not valid UTF-8: ${bytes.length} bytes`);
  }
}

function notJson(why: string): ApiError {
  return new ApiError(400, `Cannot read request: the body is invalid: ${why}`, { code: 'invalid_json' });
}

function encoded(): ApiError {
  return new ApiError(
    415,
    "Cannot read request: the header 'content-encoding' is not supported: send the body uncompressed",
    {
      code: 'unsupported_encoding',
      param: 'content-encoding',
    },
  );
}

function tooLarge(bytesMax: number): ApiError {
  return new ApiError(413, `Cannot read request: the body is larger than ${bytesMax} bytes`, {
    code: 'body_too_large',
  });
}
