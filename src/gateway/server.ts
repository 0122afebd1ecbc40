// Listening, and ending in order: no new connections, those under way finish, then the port is free.
import type { Server } from 'node:http';
import { createAdaptorServer } from '@hono/node-server';
import { createApp, type GatewayOptions } from './app.ts';

export interface Gateway {
  readonly host: string;
  readonly port: number;
  /** Refuses new requests, lets running ones finish for at most `graceMs`, then closes. */
  drain(graceMs: number): Promise<void>;
}

/** @throws Error naming host and port when they cannot be listened on */
export async function listen(options: GatewayOptions, host: string, port: number): Promise<Gateway> {
  const app = createApp(options);
  const server = createAdaptorServer({ fetch: app.fetch, overrideGlobalObjects: false }) as Server;
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) => reject(new Error(`Cannot listen on ${host}:${port}: ${error.message}`)));
    server.listen(port, host, resolve);
  });
  const address = server.address();
  const bound = typeof address === 'object' && address !== null ? address.port : port;
  return { host, port: bound, drain: (graceMs) => drain(server, options, graceMs) };
}

async function drain(server: Server, options: GatewayOptions, graceMs: number): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  const drained = options.port.drain();
  let timer: NodeJS.Timeout | undefined;
  const grace = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, graceMs);
  });
  await Promise.race([drained, grace]);
  server.closeIdleConnections();
  await Promise.race([closed, grace]);
  clearTimeout(timer);
  server.closeAllConnections();
  await closed;
}
