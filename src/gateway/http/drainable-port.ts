// The inference port of a gateway that can stop: it reports the drain while requests are still accepted, and ends requests that exceed it.
import type { RequestId } from '../../core/protocol/ids.ts';
import type {
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
  Readiness,
} from '../../core/protocol/ports.ts';

type Sink = (event: GenerationEvent) => void;

export class DrainablePort implements InferencePort {
  readonly #port: InferencePort;
  /** Sinks of accepted requests that have not ended. */
  readonly #sinks = new Map<RequestId, Sink>();
  #isLeaving = false;

  constructor(port: InferencePort) {
    this.#port = port;
  }

  /** `/ready` reports the drain from now on, so that load balancers send new requests elsewhere; requests that still arrive are served. */
  announce(): void {
    this.#isLeaving = true;
  }

  get isLeaving(): boolean {
    return this.#isLeaving;
  }

  /** Ends the remaining requests with an error. Returns their number. */
  cut(): number {
    const cut = [...this.#sinks];
    this.#sinks.clear();
    const message = 'Cannot finish request: the server stops, and the request exceeded --drain-timeout';
    for (const [id, sink] of cut) {
      this.#port.cancel(id);
      sink({ kind: 'failed', code: 'SHUTTING_DOWN', message, retryAfterMs: undefined });
    }
    return cut.length;
  }

  submit(request: GenerationRequest, sink: Sink): void {
    const { id } = request;
    this.#sinks.set(id, sink);
    this.#port.submit(request, (event) => {
      if (event.kind === 'finished' || event.kind === 'failed') this.#sinks.delete(id);
      sink(event);
    });
  }

  cancel(id: RequestId): void {
    this.#sinks.delete(id);
    this.#port.cancel(id);
  }

  overload(ahead: number): ReturnType<InferencePort['overload']> {
    return this.#port.overload(ahead);
  }

  readiness(): Readiness {
    const own = this.#port.readiness();
    if (!this.#isLeaving || own.kind !== 'ready') return own;
    return { kind: 'draining', message: 'the server stops soon; new requests are still served' };
  }

  snapshot(): InstanceSnapshot {
    return this.#port.snapshot();
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#port.instances();
  }

  drain(): Promise<void> {
    return this.#port.drain();
  }
}
