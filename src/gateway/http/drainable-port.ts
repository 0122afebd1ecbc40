// The ports of a gateway that can stop: they report the drain while requests are still accepted, and end requests that exceed it.
import type { RequestId } from '../../core/protocol/ids.ts';
import type {
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
  InstancesPort,
  Readiness,
} from '../../core/protocol/ports.ts';
import { SlotMap } from '../../util/slot-map.ts';

type Sink = (event: GenerationEvent) => void;

interface AcceptedRequest {
  readonly sink: Sink;
  /** The port to which it was submitted. */
  readonly port: InferencePort;
}

export class DrainablePort implements InstancesPort {
  readonly #port: InstancesPort;
  /** Accepted requests that have not ended. */
  readonly #requests = new SlotMap<RequestId, AcceptedRequest>();
  #isLeaving = false;

  /** @param port the state of all instances, those of several models together */
  constructor(port: InstancesPort) {
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
    const cut = [...this.#requests];
    this.#requests.clear();
    const message = 'Cannot finish request: the server stops, and the request exceeded --drain-timeout';
    for (const [id, { sink, port }] of cut) {
      port.cancel(id);
      sink({ kind: 'failed', code: 'SHUTTING_DOWN', message, retryAfterMs: undefined });
    }
    return cut.length;
  }

  /** The port of a model; its requests take part in the drain. */
  observed(port: InferencePort): InferencePort {
    return {
      submit: (request, sink) => this.#submit(port, request, sink),
      cancel: (id) => {
        this.#requests.delete(id);
        port.cancel(id);
      },
      overload: (ahead) => port.overload(ahead),
      readiness: () => port.readiness(),
      snapshot: () => port.snapshot(),
      instances: () => port.instances(),
      drain: () => port.drain(),
    };
  }

  overload(ahead: number): ReturnType<InstancesPort['overload']> {
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

  #submit(port: InferencePort, request: GenerationRequest, sink: Sink): void {
    const { id } = request;
    this.#requests.set(id, { sink, port });
    port.submit(request, (event) => {
      if (event.kind === 'finished' || event.kind === 'failed') this.#requests.delete(id);
      sink(event);
    });
  }
}
