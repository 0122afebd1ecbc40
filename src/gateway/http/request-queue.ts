// The entry of generating requests: refuses those over the bound before any work, and admits the others one by one.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { InferencePort } from '../../core/protocol/ports.ts';
import { type ApiError, errorHeaders, fromFailure, newRequestId } from './errors.ts';

type Listener = (incoming: IncomingMessage, outgoing: ServerResponse) => void;

export interface RequestQueueOptions {
  readonly port: InferencePort;
  /** True if the caller is authorised to learn the state of the queue. */
  readonly isAuthorised: (authorization: string | undefined) => boolean;
  readonly onRefused: (requestId: string, path: string) => void;
}

const generatingPaths: ReadonlySet<string> = new Set(['/v1/chat/completions', '/v1/completions']);

/**
 * Reading and validating a request takes about a millisecond, so that the last of 300 would wait 300 ms for its refusal.
 * Requests wait unread, and each turn of the event loop admits one. Requests that find the queue and the line
 * full are refused at once. The count is approximate; that of the conductor, at submission, is exact.
 */
export class RequestQueue {
  readonly #options: RequestQueueOptions;
  readonly #line: (() => void)[] = [];
  /** Requests admitted here but not yet submitted; the port does not count them. */
  #entering = 0;
  /** Submitted requests that have not expired yet. */
  #submitted = 0;
  #turning = false;

  constructor(options: RequestQueueOptions) {
    this.#options = options;
  }

  /** The request listener of the server; `listener` serves admitted requests over the port of `watch`. */
  before(listener: Listener): Listener {
    return (incoming, outgoing) => this.#receive(incoming, outgoing, listener);
  }

  #receive(incoming: IncomingMessage, outgoing: ServerResponse, listener: Listener): void {
    const { port, isAuthorised } = this.#options;
    const { method, url = '', headers } = incoming;
    if (method !== 'POST' || !generatingPaths.has(url)) {
      listener(incoming, outgoing);
      return;
    }
    const overload = port.overload(this.#line.length + this.#entering);
    // The app answers with CORS headers for browsers, and with 401 for unauthorised callers.
    if (overload !== undefined && headers.origin === undefined && isAuthorised(headers.authorization)) {
      this.#refuse(fromFailure(overload), url, outgoing);
      return;
    }
    this.#line.push(() => {
      // Clients that disconnected in the line are skipped: they emit no second 'close'.
      if (!outgoing.closed) listener(incoming, outgoing);
    });
    this.#turn();
  }

  /** The port, reporting each submission to this queue. */
  watch(): InferencePort {
    const { port } = this.#options;
    return {
      submit: (request, sink) => {
        if (this.#entering > 0) {
          this.#entering--;
          this.#submitted++;
        }
        port.submit(request, sink);
      },
      overload: (ahead) => port.overload(ahead),
      cancel: (id) => port.cancel(id),
      readiness: () => port.readiness(),
      snapshot: () => port.snapshot(),
      instances: () => port.instances(),
      drain: () => port.drain(),
    };
  }

  #refuse(error: ApiError, path: string, outgoing: ServerResponse): void {
    const requestId = newRequestId();
    outgoing.writeHead(error.status, errorHeaders(error, requestId));
    outgoing.end(JSON.stringify(error.body()));
    this.#options.onRefused(requestId, path);
  }

  #turn(): void {
    if (this.#turning) return;
    this.#turning = true;
    setImmediate(() => {
      this.#turning = false;
      const enter = this.#line.shift();
      if (enter === undefined) return;
      this.#entering++;
      setImmediate(() => setImmediate(() => this.#expire()));
      enter();
      if (this.#line.length > 0) this.#turn();
    });
  }

  /** A request not submitted by now was invalid or has a slow body; it no longer counts. */
  #expire(): void {
    if (this.#submitted > 0) this.#submitted--;
    else this.#entering--;
  }
}
