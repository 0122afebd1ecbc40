// Clients in a closed loop: each sends its next request when its last one has ended.

/** Pauses of a client between an answer and its next request. */
export interface ClientPauses {
  readonly meanUs: number;
  readonly kind: 'exponential' | 'constant';
  readonly seed: number;
}

/** Sends requests in their order, at most `clients` at a time. */
export class ClientLoop<Request> {
  readonly clients: number;
  readonly #send: (request: Request) => void;
  /** Requests that wait for a client, from `#first` on. */
  #queue: Request[] = [];
  #first = 0;
  #idle: number;

  constructor(clients: number, send: (request: Request) => void) {
    this.clients = clients;
    this.#idle = clients;
    this.#send = send;
  }

  /** Requests that wait for a client. */
  get waiting(): number {
    return this.#queue.length - this.#first;
  }

  /** An idle client sends the request at once; otherwise it waits for one. */
  add(request: Request): void {
    this.#queue.push(request);
    this.#sendNext();
  }

  /** The request of a client has ended. */
  ended(): void {
    this.#idle++;
    this.#sendNext();
  }

  #sendNext(): void {
    if (this.#idle === 0 || this.waiting === 0) return;
    this.#idle--;
    const request = this.#queue[this.#first++];
    if (this.#first === this.#queue.length) {
      this.#queue = [];
      this.#first = 0;
    }
    this.#send(request);
  }
}
