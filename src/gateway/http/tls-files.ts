// The certificate and key of the endpoint, read again when they are replaced.
import { readFileSync } from 'node:fs';
import { createSecureContext, type Server } from 'node:tls';
import { watchFiles } from './watch-files.ts';

export interface TlsFiles {
  /** PEM: the certificate, followed by those of its issuers. */
  readonly cert: string;
  /** PEM. */
  readonly key: string;
}

export interface TlsContext {
  readonly cert: Buffer;
  readonly key: Buffer;
}

/** @throws Error in one line that names the files */
export function readTls({ cert, key }: TlsFiles): TlsContext {
  try {
    const context = { cert: readFileSync(cert), key: readFileSync(key) };
    createSecureContext(context);
    return context;
  } catch (error) {
    throw new Error(`Cannot use the certificate ${cert} with the key ${key}: ${messageOf(error)}`);
  }
}

/** New connections use replaced files; invalid ones change nothing. Returns the end of the watch. */
export function watchTls(files: TlsFiles, server: Server, log: (message: string) => void): () => void {
  return watchFiles([files.cert, files.key], () => {
    try {
      server.setSecureContext(readTls(files));
      log(`Read the certificate ${files.cert} again`);
    } catch (error) {
      log(`${messageOf(error)}; the earlier one stays in use`);
    }
  });
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
