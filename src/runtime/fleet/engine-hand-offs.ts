// The requests of a gateway that one external engine prefills and another one decodes.
import { HandOff, type HandOffEffect, type HandOffEvent, type HandOffOrder } from '../../core/fleet/hand-off.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationEvent, GenerationRequest } from '../../core/protocol/ports.ts';
import type { Refusal } from '../../core/protocol/refusals.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { BootstrapRendezvous, HandOffDialect } from './engine-dialect.ts';
import type { EngineAnswer } from './engine-http.ts';
import type { ExternalEngine } from './external-engine.ts';
import { refusalOf, whyRefused } from './external-instance.ts';

export interface EngineHandOff {
  readonly order: HandOffOrder;
  readonly request: GenerationRequest;
  readonly from: InstanceIndex;
  readonly to: InstanceIndex;
  readonly rendezvous: BootstrapRendezvous;
}

/** What hand-offs require of the gateway. */
export interface HandOffCalls<Params> {
  query(handOff: EngineHandOff): void;
  prefill(handOff: EngineHandOff): void;
  /** @param call alone: the decode engine computes the prompt too */
  decode(handOff: EngineHandOff, call: { readonly params: Params | undefined; readonly alone: boolean }): void;
  /** The engine ends the request, if it has it. */
  end(instance: InstanceIndex, id: RequestId): void;
  /** For the conductor: the prefill engine has nothing left to do. */
  prefilled(handOff: EngineHandOff): void;
  /** For the conductor: the attempt is lost. */
  released(instance: InstanceIndex, id: RequestId, why: string, refusal: Refusal | undefined): void;
}

interface Running<Params> extends EngineHandOff {
  readonly machine: HandOff<Params>;
}

/** Bootstrap rooms are below this. */
const roomsMax = 2 ** 48;

export function drawBootstrapRoom(): number {
  return Math.floor(Math.random() * roomsMax);
}

export class EngineHandOffs<Params> {
  readonly #calls: HandOffCalls<Params>;
  readonly #running = new Map<RequestId, Running<Params>>();

  constructor(calls: HandOffCalls<Params>) {
    this.#calls = calls;
  }

  get size(): number {
    return this.#running.size;
  }

  has(id: RequestId): boolean {
    return this.#running.has(id);
  }

  /** True if the instance prefills the request. */
  isFrom(instance: InstanceIndex, id: RequestId): boolean {
    return this.#running.get(id)?.from === instance;
  }

  /** True if a hand-off needs the instance. */
  needs(instance: InstanceIndex): boolean {
    return [...this.#running.values()].some(
      ({ from, to, machine }) => to === instance || (from === instance && machine.awaitsPrefill),
    );
  }

  start(handOff: EngineHandOff): void {
    const running = { ...handOff, machine: new HandOff<Params>(handOff.order) };
    this.#running.set(handOff.request.id, running);
    for (const effect of running.machine.start()) this.#carryOut(running, effect, undefined);
  }

  /** @param refusal of the engine that the event is about */
  step(id: RequestId, event: HandOffEvent<Params>, refusal?: Refusal): void {
    const running = this.#running.get(id);
    if (running === undefined) return;
    const effects = running.machine.step(event);
    if (running.machine.hasEnded) this.#running.delete(id);
    for (const effect of effects) this.#carryOut(running, effect, refusal);
  }

  /** An event of an engine, before the conductor takes it. */
  observe(instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    const { from, to } = this.#running.get(id) ?? {};
    // The prefill instance fails a request that no engine can compute.
    if (from === instance && event.kind === 'failed') this.step(id, { kind: 'cancelled' });
    if (to !== instance) return;
    if (event.kind === 'tokens') this.step(id, { kind: 'decoding' });
    if (event.kind === 'finished' || event.kind === 'failed') this.step(id, { kind: 'decodeEnded', why: undefined });
  }

  /** The instance has left: the conductor retries the requests that it has. */
  instanceLeft(instance: InstanceIndex): void {
    for (const [id, { from, to, machine }] of [...this.#running])
      if (to === instance || (from === instance && machine.awaitsPrefill)) this.step(id, { kind: 'cancelled' });
  }

  #carryOut(handOff: Running<Params>, effect: HandOffEffect<Params>, refusal: Refusal | undefined): void {
    const { request, from, to } = handOff;
    const calls = this.#calls;
    switch (effect.kind) {
      case 'query':
        calls.query(handOff);
        break;
      case 'prefill':
        calls.prefill(handOff);
        break;
      case 'decode':
        calls.decode(handOff, effect);
        break;
      case 'reportPrefilled':
        calls.prefilled(handOff);
        break;
      case 'release':
        calls.released(effect.by === 'prefill' ? from : to, request.id, effect.why, refusal);
        break;
      case 'cancelPrefill':
        calls.end(from, request.id);
        break;
      case 'cancelDecode':
        calls.end(to, request.id);
        break;
      default:
        assertNever(effect);
    }
  }
}

/** How the call of a prefill engine has ended. */
export type PrefillEnd =
  /** `params` is undefined if the answer states nothing that the decode engine could use. */
  | { readonly kind: 'prefilled'; readonly params: unknown }
  /** The engine does not answer any more. */
  | { readonly kind: 'engineFailed'; readonly why: string }
  /** `refusal` states that the engine is too loaded. */
  | { readonly kind: 'failed'; readonly why: string; readonly refusal: Refusal | undefined };

/** @param answer undefined: it broke */
export async function prefillEnd(
  engine: ExternalEngine,
  handOff: HandOffDialect,
  answer: EngineAnswer | undefined,
): Promise<PrefillEnd> {
  if (answer?.status === 200) return { kind: 'prefilled', params: paramsIn(handOff, answer.body) };
  const unhealthy = await engine.unhealthy();
  if (unhealthy !== undefined && !engine.isDraining) return { kind: 'engineFailed', why: unhealthy };
  if (answer === undefined) return { kind: 'failed', why: 'its prefill broke', refusal: undefined };
  return { kind: 'failed', why: whyRefused(answer), refusal: refusalOf(answer) };
}

function paramsIn(handOff: HandOffDialect, body: string): unknown {
  try {
    return handOff.paramsOf(body);
  } catch {
    return undefined;
  }
}
