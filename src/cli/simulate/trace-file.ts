// A trace file as a stream of requests, plain or gzip.
import { createReadStream, type ReadStream } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { createGunzip } from 'node:zlib';
import { TraceParser, type TraceParserOptions, type TraceSource } from '../../trace/parser.ts';
import { type Recording, RecordingReader } from '../../trace/recording/reader.ts';
import { isRecordingLine } from '../../trace/recording/recording.ts';
import { shown, TraceError, type TraceRequest } from '../../trace/request.ts';

const gzipMagic = 0x1f8b;

export interface TracePiece {
  readonly requests: readonly TraceRequest[];
  /** Share of the file that has been read, this piece included: 0..1. */
  readonly share: number;
  /** The file so far; undefined for a generated workload. */
  readonly source?: TraceSource | undefined;
}

/** Requests in file order, a group for each read. @throws Error in one line naming file, line, field and value */
export async function* readTrace(path: string, options: TraceParserOptions): AsyncGenerator<TracePiece, void> {
  const parser = new TraceParser(options);
  try {
    const { size } = await stat(path);
    const { file, text } = await openText(path);
    for await (const piece of text) {
      const requests: TraceRequest[] = [];
      parser.push(piece, requests);
      yield { requests, share: Math.min(1, file.bytesRead / Math.max(1, size)), source: parser.source };
    }
    const last: TraceRequest[] = [];
    parser.end(last);
    yield { requests: last, share: 1, source: parser.source };
  } catch (error) {
    throw withPath(error, path);
  }
}

/** @param blockTokens of the requests; those of the file unless given @throws Error in one line naming file, line, field and value */
export async function readRecording(
  path: string,
  blockTokens?: number,
): Promise<Recording & { readonly isTorn: boolean }> {
  let reader: RecordingReader | undefined;
  let [rest, line] = ['', 0];
  try {
    const { text } = await openText(path);
    for await (const piece of text) {
      const lines = (rest + piece).split('\n');
      rest = lines.pop() ?? '';
      for (const one of lines) {
        line++;
        if (one.trim() === '') continue;
        if (reader !== undefined) reader.take(one, line);
        else if (isRecordingLine(one)) reader = new RecordingReader(one, line, blockTokens);
        else throw new TraceError(line, `no recording of kvasir serve: recording expected, not ${shown(one)}`);
      }
    }
    if (reader === undefined) throw new TraceError(1, 'the file has no whole line');
    return { ...reader.end(), isTorn: rest !== '' };
  } catch (error) {
    throw withPath(error, path);
  }
}

/** The error in one line with the name of the file. */
function withPath(error: unknown, path: string): Error {
  if (error instanceof TraceError) return new Error(error.message.replace('the trace', path), { cause: error });
  const why = error instanceof Error ? error.message.split('\n')[0] : String(error);
  return new Error(`Cannot read ${path}: ${why}`, { cause: error });
}

async function openText(path: string): Promise<{ readonly file: ReadStream; readonly text: AsyncIterable<string> }> {
  const zipped = await isGzip(path);
  const file = createReadStream(path, { highWaterMark: 2 ** 20 });
  if (!zipped) return { file, text: file.setEncoding('utf8') };
  const unzipped = createGunzip({ chunkSize: 2 ** 18 });
  file.on('error', (error) => unzipped.destroy(error));
  return { file, text: file.pipe(unzipped).setEncoding('utf8') };
}

async function isGzip(path: string): Promise<boolean> {
  const file = await open(path);
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(2), 0, 2, 0);
    return bytesRead === 2 && buffer.readUInt16BE(0) === gzipMagic;
  } finally {
    await file.close();
  }
}
