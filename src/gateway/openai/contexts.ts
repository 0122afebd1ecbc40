// /v1/contexts: prefixes that clients have kept for a time, so that prompts behind them start there.

import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type { ClusterPort, GenerationRequest, PinOrder } from '../../core/protocol/ports.ts';
import { ApiError, badField } from '../http/errors.ts';
import { checkModel, type EndpointCall, type EndpointContext } from './endpoint.ts';
import { parseBody } from './fields.ts';
import { chatPrompt, completionPrompts } from './prompt.ts';
import { clientGone } from './run-choices.ts';
import { contextSchema } from './schema.ts';

/** Of all clients together. */
const contextsMax = 1024;
const ttlSDefault = 300;

const renewalSchema = z.object({ ttl: contextSchema.shape.ttl });

interface Kept {
  readonly id: string;
  readonly tenant: string;
  readonly model: string;
  readonly createdMs: number;
  readonly order: PinOrder;
  ttlS: number;
  /** Undefined while it is being computed. */
  pinned: { readonly tokens: number; readonly instance: number; readonly expiresMs: number } | undefined;
}

type Refused = Extract<PinState, { kind: 'refused' }>;

/** What instances hold they tell themselves: a context is gone when its instance says so, or is. */
export class Contexts {
  readonly #cluster: ClusterPort;
  readonly #kept = new Map<string, Kept>();

  constructor(cluster: ClusterPort) {
    this.#cluster = cluster;
  }

  /** Resolves once it is kept. @throws ApiError 400 naming the field, 429 where there is no room */
  async create(json: unknown, context: EndpointContext, call: EndpointCall): Promise<object> {
    const body = parseBody(contextSchema, json);
    checkModel(body.model, context.model);
    if ((body.prompt === undefined) === (body.messages === undefined))
      throw badField('prompt', "Cannot keep a context: give one of 'prompt' and 'messages'");
    const prompt = await promptOf(body, context);
    if (this.#kept.size >= contextsMax)
      throw new ApiError(429, `Cannot keep a context: ${this.#kept.size} are kept, ${contextsMax} may be`, {
        code: 'too_many_contexts',
      });
    const id = `ctx-${randomUUID().replaceAll('-', '')}`;
    const ttlS = body.ttl ?? ttlSDefault;
    const request = requestOf(id, prompt, body.cache_salt ?? '', call.tenant);
    const order = { id, request, ttlUs: ttlS * 1e6 };
    const kept: Kept = {
      id,
      tenant: call.tenant,
      model: body.model,
      createdMs: Date.now(),
      order,
      ttlS,
      pinned: undefined,
    };
    const field = body.prompt === undefined ? 'messages' : 'prompt';
    await this.#keep(kept, field, call.signal);
    return describe(kept);
  }

  list(tenant: string): object {
    const data = [...this.#kept.values()].filter((kept) => kept.tenant === tenant && kept.pinned !== undefined);
    return { object: 'list', data: data.map(describe) };
  }

  get(id: string, tenant: string): object {
    return describe(this.#find(id, tenant));
  }

  /** From now on it is kept for so long again, or longer if it would be anyway. */
  renew(id: string, json: unknown, tenant: string): object {
    const kept = this.#find(id, tenant);
    const { ttl = ttlSDefault } = parseBody(renewalSchema, json);
    kept.ttlS = ttl;
    this.#pin(kept, () => {});
    if (kept.pinned !== undefined)
      kept.pinned = { ...kept.pinned, expiresMs: Math.max(kept.pinned.expiresMs, Date.now() + ttl * 1000) };
    return describe(kept);
  }

  remove(id: string, tenant: string): object {
    this.#find(id, tenant);
    this.#kept.delete(id);
    this.#cluster.unpin(id);
    return { id, object: 'context.deleted', deleted: true };
  }

  #find(id: string, tenant: string): Kept {
    const kept = this.#kept.get(id);
    if (kept !== undefined && kept.tenant === tenant && kept.pinned !== undefined) return kept;
    throw new ApiError(404, `Cannot find context '${id.slice(0, 128)}': it was never kept, or its time has passed`, {
      code: 'context_not_found',
    });
  }

  #keep(kept: Kept, field: string, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        this.#kept.delete(kept.id);
        this.#cluster.unpin(kept.id);
        reject(clientGone());
      };
      if (signal.aborted) throw clientGone();
      signal.addEventListener('abort', leave, { once: true });
      this.#kept.set(kept.id, kept);
      this.#pin(kept, (refused) => {
        signal.removeEventListener('abort', leave);
        if (refused === undefined) resolve();
        else reject(errorOf(refused, field));
      });
    });
  }

  /** @param answered when it is kept, or refused */
  #pin(kept: Kept, answered: (refused: Refused | undefined) => void): void {
    const { id, order, ttlS } = kept;
    this.#cluster.pin({ ...order, ttlUs: ttlS * 1e6 }, (state, instance = 0) => {
      if (state.kind === 'pinned') {
        // Times of other threads are by clocks of their own. An answer to a renewal has no tokens.
        const expiresMs = Math.max(kept.pinned?.expiresMs ?? 0, Date.now() + kept.ttlS * 1000);
        kept.pinned = { tokens: kept.pinned?.tokens ?? state.tokens, instance, expiresMs };
        answered(undefined);
        return;
      }
      this.#kept.delete(id);
      answered(state.kind === 'refused' ? state : lost);
    });
  }
}

const lost: Refused = { kind: 'refused', why: 'failed', message: 'Cannot pin a prefix: its instance is gone' };

async function promptOf(body: z.infer<typeof contextSchema>, { model, encode }: EndpointContext): Promise<Int32Array> {
  if (body.messages !== undefined) return chatPrompt({ messages: body.messages }, model, encode);
  const [prompt, second] = await completionPrompts({ prompt: body.prompt ?? '' }, model, encode);
  if (second !== undefined || prompt === undefined)
    throw badField('prompt', "Cannot keep a context: 'prompt' is a list: one prompt is one context");
  return prompt;
}

/** Computes the prompt where nobody has. */
function requestOf(id: string, prompt: Int32Array, salt: string, tenant: string): GenerationRequest {
  const greedy = { temperature: 0, topP: 1, topK: 0, minP: 0, seed: [0, 0], logitBias: [] } as const;
  const penalties = { repetitionPenalty: 1, frequencyPenalty: 0, presencePenalty: 0 };
  const sampling = { ...greedy, ...penalties, topLogprobs: undefined, promptLogprobs: false };
  return { id, prompt, maxTokens: 1, sampling, stopTokenIds: [], priority: 0, salt, tenant };
}

function errorOf({ why, message }: Refused, field: string): ApiError {
  if (why === 'length') return badField(field, message);
  if (why === 'memory') return new ApiError(429, message, { code: 'kv_overloaded', retryAfterMs: 1000 });
  return new ApiError(503, message, { code: 'not_kept' });
}

function describe({ id, model, createdMs, ttlS, order, pinned }: Kept): object {
  return {
    id,
    object: 'context',
    model,
    created_at: Math.floor(createdMs / 1000),
    expires_at: pinned === undefined ? null : Math.floor(pinned.expiresMs / 1000),
    ttl: ttlS,
    prompt_tokens: order.request.prompt.length,
    cached_tokens: pinned?.tokens ?? 0,
    instance: pinned?.instance ?? null,
  };
}
