// A trace file as a stream of requests, plain or gzip.
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { createGunzip } from 'node:zlib';
import { TraceParser, type TraceParserOptions } from '../trace/parser.ts';
import { TraceError, type TraceRequest } from '../trace/request.ts';

const gzipMagic = 0x1f8b;

/** Requests in the order of the file, in groups as they are read. @throws Error in one line naming file, and line, field and value */
export async function* readTrace(
  path: string,
  options: TraceParserOptions,
): AsyncGenerator<readonly TraceRequest[], void> {
  const parser = new TraceParser(options);
  try {
    for await (const text of await readText(path)) {
      const requests: TraceRequest[] = [];
      parser.push(text, requests);
      yield requests;
    }
    const last: TraceRequest[] = [];
    parser.end(last);
    yield last;
  } catch (error) {
    if (error instanceof TraceError) throw new Error(error.message.replace('the trace', path), { cause: error });
    throw new Error(`Cannot read ${path}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`, {
      cause: error,
    });
  }
}

async function readText(path: string): Promise<AsyncIterable<string>> {
  const zipped = await isGzip(path);
  const file = createReadStream(path, { highWaterMark: 2 ** 20 });
  if (!zipped) return file.setEncoding('utf8');
  const unzipped = createGunzip();
  file.on('error', (error) => unzipped.destroy(error));
  return file.pipe(unzipped).setEncoding('utf8');
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
