// The queue of generating requests: refuses those above the limit `--queue` before any work, and admits the others one by one.
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { InferencePort, InstancesPort } from '../../core/protocol/ports.ts';
import { type ApiError, clientRequestId, errorHeaders, fromFailure, newRequestId } from './errors.ts';
import { errorBody, isGenerating } from './protocol-paths.ts';

type Listener = (incoming: IncomingMessage, outgoing: ServerResponse) => void;

const pathOf = (url: string): string => url.split('?', 1)[0] ?? '';

export interface RequestQueueOptions {
  readonly port: InstancesPort;
  /** True if the caller may receive the state of the queue. */
  readonly isAuthorised: (headers: IncomingHttpHeaders) => boolean;
  readonly onRefused: (requestId: string, path: string) => void;
}

/**
 * Reading and validating a request takes about a millisecond: the last of 300 requests would wait 300 ms for its refusal.
 * So each turn of the event loop admits one request, and the others wait unread. A request over the bound is refused at
 * once. The count is approximate; that of the conductor, at submission, is exact.
 */
export class RequestQueue {
  readonly #options: RequestQueueOptions;
  readonly #waiting: (() => void)[] = [];
  /** Admitted and not yet submitted requests; the port does not count them. */
  #admitted = 0;
  /** Of the admitted requests, those submitted whose time here (`#expire`) has not passed. */
  #submitted = 0;
  /** This turn of the event loop has admitted a request. */
  #hasAdmitted = false;

  constructor(options: RequestQueueOptions) {
    this.#options = options;
  }

  /** The request listener of the server; `listener` serves admitted requests over ports of `observed`. */
  wrap(listener: Listener): Listener {
    return (incoming, outgoing) => this.#receive(incoming, outgoing, listener);
  }

  #receive(incoming: IncomingMessage, outgoing: ServerResponse, listener: Listener): void {
    const { port, isAuthorised } = this.#options;
    const { method, url = '', headers } = incoming;
    if (method !== 'POST' || !isGenerating(pathOf(url))) {
      listener(incoming, outgoing);
      return;
    }
    const overload = port.overload(this.#waiting.length + this.#admitted);
    // The app responds with CORS headers to browsers, and with 401 to unauthorised callers.
    if (overload !== undefined && headers.origin === undefined && isAuthorised(headers)) {
      this.#refuse(fromFailure(overload), incoming, outgoing);
      return;
    }
    const serve = (): void => {
      // Requests of disconnected clients are skipped: they emit no second 'close'.
      if (!outgoing.closed) listener(incoming, outgoing);
    };
    if (this.#hasAdmitted) this.#waiting.push(serve);
    else this.#admit(serve);
  }

  /** The port of a model; each submission to it is also counted here. */
  observed(port: InferencePort): InferencePort {
    return {
      submit: (request, sink) => {
        if (this.#admitted > 0) {
          this.#admitted--;
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

  #refuse(error: ApiError, { url = '', headers }: IncomingMessage, outgoing: ServerResponse): void {
    const given = headers['x-request-id'];
    const requestId = clientRequestId(typeof given === 'string' ? given : undefined) ?? newRequestId();
    outgoing.writeHead(error.status, errorHeaders(error, requestId));
    outgoing.end(JSON.stringify(errorBody(pathOf(url), error, requestId)));
    this.#options.onRefused(requestId, pathOf(url));
  }

  #admit(serve: () => void): void {
    this.#hasAdmitted = true;
    this.#admitted++;
    setImmediate(() => {
      this.#hasAdmitted = false;
      setImmediate(() => setImmediate(() => this.#expire()));
      const next = this.#waiting.shift();
      if (next !== undefined) this.#admit(next);
    });
    serve();
  }

  /** A request not submitted by now was invalid or has a slow body; it no longer counts. */
  #expire(): void {
    if (this.#submitted > 0) this.#submitted--;
    else this.#admitted--;
  }
}
