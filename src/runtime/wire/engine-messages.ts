// Parts of the messages by which a gateway lets one external engine prefill for another one.
import { z } from 'zod';
import type { HandOffOrder } from '../../core/fleet/hand-off.ts';
import { type EngineKind, engineKinds } from '../../core/protocol/instance-report.ts';

const port = z.int().min(0).max(65_535);
const host = z.string().max(300);
/** The parameters of an engine for another one name each block of a prompt. */
export const engineParamsMax = 2 ** 20;
const params = z.string().max(engineParamsMax).refine(isJson, 'no JSON');

/** How an engine hands prompts off, as it announces. */
export interface EngineHandOffInfo {
  readonly kind: EngineKind;
  readonly order: HandOffOrder;
  /** Of its bootstrap server, as decode engines reach it. */
  readonly host: string;
  readonly port?: number;
}

export const engineHandOffInfo = z.object({
  ...{ kind: z.enum(engineKinds), order: z.enum(['sequential', 'concurrent', 'queried']) },
  ...{ host, port: port.exactOptional() },
});

/** The bootstrap server over which two engines hand off one request, and its room there. */
interface EngineRendezvous {
  readonly host: string;
  readonly port?: number;
  readonly bootstrapRoom: number;
}

/** The part of one engine in a hand-off. */
export type EngineCallPart =
  | { readonly leg: 'prefill'; readonly rendezvous: EngineRendezvous }
  | {
      readonly leg: 'decode';
      readonly rendezvous: EngineRendezvous;
      /** The prefill engine has not answered: the command `prefilled` follows. */
      readonly receiving: boolean;
      /** JSON of what the prefill engine states for the decode engine. */
      readonly params?: string;
    };

const rendezvous = z.object({ host, port: port.exactOptional(), bootstrapRoom: z.int().min(0) });
export const engineCallPart = z.discriminatedUnion('leg', [
  z.object({ leg: z.literal('prefill'), rendezvous }),
  z.object({ leg: z.literal('decode'), rendezvous, receiving: z.boolean(), params: params.exactOptional() }),
]);

/** The answer of an engine that prefills for another one. */
export type PrefillAnswer =
  | { readonly kind: 'prefilled'; readonly params?: string }
  /** `overloaded`: it gets no later attempt of the request. */
  | { readonly kind: 'failed'; readonly why: string; readonly overloaded: boolean };

export const prefillAnswer = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('prefilled'), params: params.exactOptional() }),
  z.object({ kind: z.literal('failed'), why: z.string().max(65_536), overloaded: z.boolean() }),
]);

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
