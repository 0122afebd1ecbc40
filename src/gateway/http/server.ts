// The HTTP server: starts, serves, and drains, so that running requests finish before the port is free.
import { createServer, type RequestListener, type Server, type ServerOptions, ServerResponse } from 'node:http';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:https';
import type { Socket } from 'node:net';
import { getRequestListener } from '@hono/node-server';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import type { Logger } from 'pino';
import type { InferencePort } from '../../core/protocol/ports.ts';
import { authorizationOf } from '../keys/api-keys.ts';
import {
  connectionsMaxDefault,
  createApp,
  type GatewayOptions,
  type GatewaySettings,
  metricsOf,
  type SharedGatewayOptions,
  servedModelsOf,
} from './app.ts';
import { DrainablePort } from './drainable-port.ts';
import { ApiError, errorHeaders, newRequestId } from './errors.ts';
import { isLoopback, refusalOfForeignPage } from './local-origin.ts';
import { RequestQueue } from './request-queue.ts';
import type { SseStream } from './sse.ts';
import { readTls, watchTls } from './tls-files.ts';

/** Longer than proxies keep idle connections, so that the server never closes one while a request arrives. */
const keepAliveMs = 75_000;

/** Time for the error events of cut streams to be sent. */
const cutMs = 1_000;

export interface DrainTimes {
  /** The port stays open for this time, with `/ready` 503: load balancers learn of the end before requests are refused. */
  readonly waitMs: number;
  /** Then running requests may finish within this time. */
  readonly timeoutMs: number;
}

export interface Gateway {
  readonly host: string;
  readonly port: number;
  /** Lets load balancers leave, then refuses new requests, lets running ones finish, ends the rest with an error, and closes. */
  drain(times: DrainTimes): Promise<void>;
}

/** @throws Error naming host and port if the server cannot listen there */
export async function listen(
  options: GatewayOptions | SharedGatewayOptions,
  host: string,
  requestedPort: number,
): Promise<Gateway> {
  const models = servedModelsOf(options);
  const metrics = metricsOf(options, models);
  const port = new DrainablePort(options.port);
  const queue = new RequestQueue({
    port,
    isAuthorised: (headers) =>
      options.keys.accepts(authorizationOf(headers.authorization, headers['x-api-key']?.toString())),
    onRefused: (requestId, path) => {
      metrics.response(path, 429);
      metrics.refusedUnread();
      options.logger.info({ requestId, method: 'POST', path, status: 429 }, 'request');
    },
  });
  const stopping = new AbortController();
  const observed = (own: InferencePort): InferencePort => queue.observed(port.observed(own));
  const listener = listenerOf(createApp({ ...options, models, port }, metrics, stopping.signal, observed));
  const guardsPages = isLoopback(host) && !options.keys.areRequired;
  const admitted = queue.wrap((incoming, outgoing) => void listener(incoming, outgoing));
  // Node refuses requests without a host, expectations and tunnels with an empty body; this server responds in the OpenAI shape.
  const { server, endWatch } = createListener(options, (incoming, outgoing) => {
    const { httpVersion, headers } = incoming;
    // The next request of the client then finds another server.
    if (port.isLeaving) outgoing.shouldKeepAlive = false;
    const foreign = guardsPages ? refusalOfForeignPage(incoming) : undefined;
    if (httpVersion === '1.1' && headers.host === undefined) refuse(badRequest(400), outgoing);
    else if (foreign !== undefined) refuse(closing(foreign), outgoing);
    else admitted(incoming, outgoing);
  });
  server.maxConnections = options.connectionsMax ?? connectionsMaxDefault;
  const responses = new OpenResponses(server);
  server.on('checkExpectation', (_, outgoing: ServerResponse) => refuse(badRequest(417), outgoing));
  server.on('connect', (_, socket: Socket) => socket.end(rawRefusal(405)));
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => refuseBytes(error, socket));
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) => reject(new Error(`Cannot listen on ${host}:${requestedPort}: ${error.message}`)));
    server.listen(requestedPort, host, resolve);
  });
  return {
    host,
    port: portOf(server) ?? requestedPort,
    drain: async ({ waitMs, timeoutMs }) => {
      port.announce();
      stopping.abort();
      endWatch();
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      await drain(server, responses, port, timeoutMs, options.logger);
      await options.exporter?.flush();
    },
  };
}

/** Streams are written to their connections directly. */
function listenerOf(app: ReturnType<typeof createApp>): ReturnType<typeof getRequestListener> {
  const respond: Parameters<typeof getRequestListener>[0] = async (request, env) => {
    const { outgoing } = env;
    if (!(outgoing instanceof ServerResponse)) return app.fetch(request, env);
    let stream: SseStream | undefined;
    const response = await app.fetch(request, {
      ...env,
      attach: (attached: SseStream) => {
        stream = attached;
      },
    });
    if (stream === undefined) return response;
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    stream.writeTo(outgoing);
    return RESPONSE_ALREADY_SENT;
  };
  return getRequestListener(respond, {
    overrideGlobalObjects: false,
    // HTTP/1.0 clients send no host.
    hostname: 'localhost',
    errorHandler: () => {
      const { status, headers, body } = badRequest(400);
      return new Response(body, { status, headers });
    },
  });
}

function portOf(server: Server | TlsServer): number | undefined {
  const address = server.address();
  return typeof address === 'object' ? address?.port : undefined;
}

/** A server of HTTPS if there is a certificate. @throws Error in one line if the certificate cannot be used */
function createListener(
  { tls, logger }: GatewaySettings,
  listener: RequestListener,
): { server: Server | TlsServer; endWatch: () => void } {
  const settings: ServerOptions = { keepAliveTimeout: keepAliveMs, requireHostHeader: false };
  if (tls === undefined) return { server: createServer(settings, listener), endWatch: () => {} };
  const server = createTlsServer({ ...settings, ...readTls(tls) }, listener);
  return { server, endWatch: watchTls(tls, server, (message) => logger.warn(message)) };
}

/** Counts requests without a complete response. */
class OpenResponses {
  #count = 0;
  #onNone: (() => void) | undefined;

  constructor(server: Server | TlsServer) {
    server.on('request', ({ socket }, outgoing) => {
      this.#count++;
      // A response queued behind another on its connection receives no 'close' of the connection.
      const onSocketClose = (): void => {
        if (!outgoing.closed) outgoing.emit('close');
      };
      socket.once('close', onSocketClose);
      outgoing.once('close', () => {
        socket.off('close', onSocketClose);
        if (--this.#count === 0) this.#onNone?.();
      });
    });
  }

  /** Resolves when all responses are complete. */
  none(): Promise<void> {
    return new Promise((resolve) => {
      this.#onNone = resolve;
      if (this.#count === 0) resolve();
    });
  }
}

async function drain(
  server: Server | TlsServer,
  responses: OpenResponses,
  port: DrainablePort,
  timeoutMs: number,
  logger: Logger,
): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  const drained = port.drain().then(() => responses.none());
  if (!(await endsWithin(drained, timeoutMs))) {
    const requests = port.cut();
    if (requests > 0) logger.warn({ requests }, `requests cut: they exceeded the drain of ${timeoutMs / 1000} s`);
    // Their error events leave first; clients that do not read are not waited for.
    await endsWithin(responses.none(), cutMs);
  }
  // The remaining connections are idle, or their clients do not read.
  server.closeAllConnections();
  await closed;
}

/** Whether the promise resolves within the time. */
async function endsWithin(done: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  const inTime = await Promise.race([done.then(() => true), timeout]);
  clearTimeout(timer);
  return inTime;
}

const badRequestReasons = {
  400: 'it is not valid HTTP',
  405: 'this server does not open tunnels',
  408: 'it was sent too slowly',
  417: 'its header Expect has an unsupported value',
  431: 'its headers are too large',
} as const;

type BadStatus = keyof typeof badRequestReasons;

interface ClosingResponse {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: string;
}

function badRequest(status: BadStatus): ClosingResponse {
  return closing(new ApiError(status, `Cannot read request: ${badRequestReasons[status]}`, { code: 'bad_request' }));
}

/** The response to a request that does not reach the app; its connection is closed. */
function closing(error: ApiError): ClosingResponse {
  const { status } = error;
  const body = JSON.stringify(error.body());
  const length = String(Buffer.byteLength(body));
  const headers = { ...errorHeaders(error, newRequestId()), connection: 'close', 'content-length': length };
  return { status, headers, body };
}

function refuse({ status, headers, body }: ClosingResponse, outgoing: ServerResponse): void {
  outgoing.writeHead(status, headers).end(body);
}

function rawRefusal(status: BadStatus): string {
  const { headers, body } = badRequest(status);
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} \r\n${lines.join('')}\r\n${body}`;
}

function refuseBytes(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable || socket.bytesWritten > 0) {
    socket.destroy();
    return;
  }
  const statuses = { HPE_HEADER_OVERFLOW: 431, ERR_HTTP_REQUEST_TIMEOUT: 408 } as const;
  socket.end(rawRefusal(statuses[error.code as keyof typeof statuses] ?? 400));
}
