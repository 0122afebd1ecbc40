// Before any work is done for a generating request: refuses over the bound at once, and lets the others in one by one.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { InferencePort } from '../../core/protocol/ports.ts';
import { type ApiError, errorHeaders, fromFailure, newRequestId } from './errors.ts';

type Listener = (incoming: IncomingMessage, outgoing: ServerResponse) => void;

export interface FrontDoorOptions {
  readonly port: InferencePort;
  /** Whether the caller may be told about the queue at all. */
  readonly isKnown: (authorization: string | undefined) => boolean;
  readonly onRefused: (requestId: string, path: string) => void;
}

const generatingPaths: ReadonlySet<string> = new Set(['/v1/chat/completions', '/v1/completions']);

/**
 * A burst costs about a millisecond a request to read and validate, so the last of 300 would wait that long for its refusal.
 * Requests stand in line unread, one is let in for each turn of the event loop, and those that find the queue and the line
 * full are refused on sight. The count is approximate; the conductor's own, at submit, is not.
 */
export class FrontDoor {
  readonly #options: FrontDoorOptions;
  readonly #line: (() => void)[] = [];
  /** Let in and not yet submitted: the port does not count them. */
  #entering = 0;
  /** Submissions whose expiry is still to come. */
  #submitted = 0;
  #turning = false;

  constructor(options: FrontDoorOptions) {
    this.#options = options;
  }

  /** What the server calls; `listener` serves the requests that are let in, over `watch`'s port. */
  before(listener: Listener): Listener {
    return (incoming, outgoing) => this.#receive(incoming, outgoing, listener);
  }

  #receive(incoming: IncomingMessage, outgoing: ServerResponse, listener: Listener): void {
    const { port, isKnown } = this.#options;
    const { method, url = '', headers } = incoming;
    if (method !== 'POST' || !generatingPaths.has(url)) {
      listener(incoming, outgoing);
      return;
    }
    const overload = port.overload(this.#line.length + this.#entering);
    // A browser needs the headers of CORS, a stranger a 401: the app gives both.
    if (overload !== undefined && headers.origin === undefined && isKnown(headers.authorization)) {
      this.#refuse(fromFailure(overload), url, outgoing);
      return;
    }
    this.#line.push(() => {
      // Whoever left while in line is not served: their 'close' will not come again.
      if (!outgoing.closed) listener(incoming, outgoing);
    });
    this.#turn();
  }

  /** The port, telling the door of each submission. */
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

  /** What was not submitted by now was refused as invalid, or reads a slow body: it stands in nobody's way. */
  #expire(): void {
    if (this.#submitted > 0) this.#submitted--;
    else this.#entering--;
  }
}
