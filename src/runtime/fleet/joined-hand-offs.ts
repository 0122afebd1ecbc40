// Hand-offs between two engines of a cluster: the gateway sends each its part, and receives what the prefill engine answers.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationEvent, GenerationRequest } from '../../core/protocol/ports.ts';
import type { Refusal } from '../../core/protocol/refusals.ts';
import type { OutputsMessage } from '../threads/thread-protocol.ts';
import type { EngineHandOffInfo, PrefillAnswer } from '../wire/engine-messages.ts';
import type { InstanceCommand } from '../wire/messages.ts';
import type { BootstrapRendezvous } from './engine-dialect.ts';
import { drawBootstrapRoom, EngineHandOffs } from './engine-hand-offs.ts';
import { overloadRefusal } from './external-instance.ts';

/** What the hand-offs require of the gateway. */
export interface JoinedHandOffsHost {
  send(instance: InstanceIndex, command: InstanceCommand): void;
  /** Leading tokens of the prompt that the instance holds. */
  cachedTokensAt(instance: InstanceIndex, request: GenerationRequest): number;
  /** For the conductor. */
  prefilled(instance: InstanceIndex, id: RequestId): void;
  released(instance: InstanceIndex, id: RequestId, why: string, refusal: Refusal | undefined): void;
}

/** Messages arrive once and in order, or the instance is lost: late ones are those of attempts that have ended. */
export class JoinedHandOffs {
  readonly #host: JoinedHandOffsHost;
  readonly #handOffs: EngineHandOffs<string>;

  constructor(host: JoinedHandOffsHost) {
    this.#host = host;
    this.#handOffs = new EngineHandOffs<string>({
      // Nothing that a gateway reaches answers for the bootstrap server: the decode engine computes alone.
      query: ({ request: { id } }) => this.#handOffs.step(id, { kind: 'queried', params: undefined }),
      prefill: ({ from, request, rendezvous }) =>
        this.#submit(from, request, { leg: 'prefill', rendezvous: sent(rendezvous) }),
      decode: ({ to, order, request, rendezvous }, { alone, params }) => {
        const receiving = order !== 'sequential';
        const part = { leg: 'decode', rendezvous: sent(rendezvous), receiving } as const;
        this.#submit(to, request, alone ? undefined : { ...part, ...(params !== undefined && { params }) });
      },
      end: (instance, id) => host.send(instance, { kind: 'cancel', id, interrupt: false }),
      prefilled: ({ from, to, order, request: { id } }) => {
        host.prefilled(from, id);
        if (order !== 'sequential') host.send(to, { kind: 'prefilled', id });
      },
      released: (instance, id, why, refusal) => host.released(instance, id, why, refusal),
    });
  }

  get size(): number {
    return this.#handOffs.size;
  }

  /** @param engine as the prefill engine announces it */
  start(
    request: GenerationRequest,
    from: InstanceIndex,
    { order, host, port }: EngineHandOffInfo,
    to: InstanceIndex,
  ): void {
    const rendezvous = { host, port, bootstrapRoom: drawBootstrapRoom() };
    this.#handOffs.start({ order, request, from, to, rendezvous });
  }

  cancelled(id: RequestId): void {
    this.#handOffs.step(id, { kind: 'cancelled' });
  }

  instanceLeft(instance: InstanceIndex): void {
    this.#handOffs.instanceLeft(instance);
  }

  /** To be called before the conductor takes the event. */
  observe(instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    this.#handOffs.observe(instance, id, event);
  }

  onPrefillAnswer(instance: InstanceIndex, id: RequestId, answer: PrefillAnswer): void {
    if (!this.#handOffs.isFrom(instance, id)) return;
    if (answer.kind === 'prefilled') this.#handOffs.step(id, { kind: 'prefilled', params: answer.params });
    else {
      const { why, overloaded } = answer;
      this.#handOffs.step(id, { kind: 'prefillFailed', why }, overloaded ? overloadRefusal(why) : undefined);
    }
  }

  /** True: an engine has released its part of a hand-off, which is reported as a whole. */
  onReleased([id, why, refusal]: OutputsMessage['released'][number]): boolean {
    if (!this.#handOffs.has(id)) return false;
    this.#handOffs.step(id, { kind: 'decodeEnded', why }, refusal);
    return true;
  }

  #submit(
    instance: InstanceIndex,
    request: GenerationRequest,
    engineCall: Extract<InstanceCommand, { kind: 'submit' }>['engineCall'],
  ): void {
    const cachedTokens = this.#host.cachedTokensAt(instance, request);
    const targets = { decodeAt: undefined, prefix: undefined, group: undefined };
    this.#host.send(instance, {
      ...{ kind: 'submit', request, ...targets, cachedTokens },
      ...(engineCall && { engineCall }),
    });
  }
}

function sent({ host, port, bootstrapRoom }: BootstrapRendezvous) {
  return port === undefined ? { host, bootstrapRoom } : { host, port, bootstrapRoom };
}
