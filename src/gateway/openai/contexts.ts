// /v1/contexts: prefixes that clients pin for a time, so that prompts with them are computed from their end on.

import { z } from 'zod';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type { ClusterPort, GenerationRequest, PinOrder } from '../../core/protocol/ports.ts';
import { oneLine } from '../../util/one-line.ts';
import type { Listed } from '../forwarding/forwarding.ts';
import type { GatewayIds } from '../forwarding/gateway-ids.ts';
import { ApiError, badField } from '../http/errors.ts';
import type { Caller } from '../keys/caller.ts';
import { checkModel, type EndpointCall, type EndpointContext, type PrefixKeeper, saltOf } from './endpoint.ts';
import { parseBody } from './fields.ts';
import { checkGenerates } from './params.ts';
import { chatPrompt, completionPrompts } from './prompt.ts';
import { clientDisconnected } from './run-choices.ts';
import { contextSchema } from './schema.ts';

/** Maximum number of contexts of all clients together. */
const contextsMax = 1024;
const ttlSDefault = 300;

const renewalSchema = z.object({ ttl: contextSchema.shape.ttl });

interface PinnedContext {
  readonly id: string;
  readonly tenant: string;
  readonly model: string;
  readonly cluster: ClusterPort;
  readonly createdMs: number;
  readonly order: PinOrder;
  /** A client marked it in a request; false: a client created it. */
  readonly isMarked: boolean;
  ttlS: number;
  /** Undefined while the prefix is being computed. */
  pinned: { readonly tokens: number; readonly instance: number; readonly expiresMs: number } | undefined;
}

interface MarkedPrefix extends Pick<GenerationRequest, 'prompt' | 'salt'> {
  readonly model: string;
  readonly cluster: ClusterPort;
  readonly ttlS: number;
  readonly caller: Caller;
}

type Refused = Extract<PinState, { kind: 'refused' }>;

/** After a refusal, marks have no effect for this time: the memory for pins is full, or there is none. */
const refusedMs = 5000;

/** Instances report their pins: a context ends when its instance reports so or fails. */
export class Contexts {
  readonly #ids: GatewayIds;
  readonly #contexts = new Map<string, PinnedContext>();
  /** Marks have no effect on a cluster before this time. */
  readonly #refusedUntilMs = new WeakMap<ClusterPort, number>();

  constructor(ids: GatewayIds) {
    this.#ids = ids;
  }

  /** Keeps the marked prefixes of a model's requests. */
  keeper(model: string, cluster: ClusterPort): PrefixKeeper {
    const hasMemory = (): boolean => Date.now() >= (this.#refusedUntilMs.get(cluster) ?? 0);
    return {
      get hasMemory() {
        return hasMemory();
      },
      keep: (prompt, ttlS, { salt }, caller) => {
        if (hasMemory()) this.#keep({ model, cluster, prompt, ttlS, salt, caller });
      },
    };
  }

  /** Resolves when the prefix is pinned. @throws ApiError 400 naming the field, 429 without free capacity */
  async create(json: unknown, context: EndpointContext, call: EndpointCall): Promise<object> {
    const body = parseBody(contextSchema, json);
    checkModel(body.model, context.model);
    checkGenerates(context.model);
    if ((body.prompt === undefined) === (body.messages === undefined))
      throw badField('prompt', "Cannot pin a context: send one of 'prompt' and 'messages'");
    const prompt = await promptOf(body, context);
    if (this.#contexts.size >= contextsMax)
      throw new ApiError(429, `Cannot pin a context: ${this.#contexts.size} of at most ${contextsMax} are pinned`, {
        code: 'too_many_contexts',
      });
    const id = this.#ids.create('ctx-');
    const ttlS = body.ttl ?? ttlSDefault;
    this.#refuseAboveLimit(call.caller, prompt.length);
    const request = requestOf(id, prompt, saltOf(body.cache_salt, call.caller), call.caller.name);
    const order = { id, request, ttlUs: ttlS * 1e6 };
    const entry: PinnedContext = {
      id,
      tenant: call.caller.name,
      model: body.model,
      cluster: context.cluster,
      createdMs: Date.now(),
      order,
      isMarked: false,
      ttlS,
      pinned: undefined,
    };
    const field = body.prompt === undefined ? 'messages' : 'prompt';
    await this.#pinAndWait(entry, field, call.signal);
    return describe(entry);
  }

  #keep({ model, cluster, prompt, ttlS, salt, caller }: MarkedPrefix): void {
    const { name: tenant } = caller;
    const marked = [...this.#contexts.values()].filter(
      (entry) =>
        entry.isMarked &&
        entry.cluster === cluster &&
        entry.ttlS === ttlS &&
        entry.tenant === tenant &&
        entry.order.request.salt === salt,
    );
    const prefixes = marked.filter(({ order }) => isPrefix(order.request.prompt, prompt));
    const same = prefixes.find(({ order }) => order.request.prompt.length === prompt.length);
    if (same !== undefined) {
      this.#pin(same, () => {});
      return;
    }
    const replaced = prefixes.reduce((sum, { order }) => sum + order.request.prompt.length, 0);
    const pinned = this.#tokensOf(tenant) - replaced + prompt.length;
    if (pinned > (caller.limits.pinnedTokens ?? Number.POSITIVE_INFINITY) || this.#contexts.size >= contextsMax) return;
    for (const { id } of prefixes) this.#release(id);
    const id = this.#ids.create('ctx-');
    const order = { id, request: requestOf(id, prompt, salt, tenant), ttlUs: ttlS * 1e6 };
    const described = { id, tenant, model, cluster, createdMs: Date.now(), order };
    const entry: PinnedContext = { ...described, isMarked: true, ttlS, pinned: undefined };
    this.#contexts.set(id, entry);
    this.#pin(entry, (refused) => {
      // A pin that has expired was not refused.
      if (refused !== undefined && entry.pinned === undefined)
        this.#refusedUntilMs.set(cluster, Date.now() + refusedMs);
    });
  }

  /** Oldest first. */
  list({ name: tenant }: Caller): readonly Listed[] {
    const own = [...this.#contexts.values()].filter((entry) => entry.tenant === tenant && entry.pinned !== undefined);
    return own.map(describe);
  }

  get(id: string, { name: tenant }: Caller): object {
    return describe(this.#find(id, tenant));
  }

  /** Extends the pin to `ttl` seconds from now; it never becomes shorter. */
  renew(id: string, json: unknown, { name: tenant }: Caller): object {
    const entry = this.#find(id, tenant);
    const { ttl = ttlSDefault } = parseBody(renewalSchema, json);
    entry.ttlS = ttl;
    this.#pin(entry, () => {});
    if (entry.pinned !== undefined)
      entry.pinned = { ...entry.pinned, expiresMs: Math.max(entry.pinned.expiresMs, Date.now() + ttl * 1000) };
    return describe(entry);
  }

  remove(id: string, { name: tenant }: Caller): object {
    this.#find(id, tenant);
    this.#release(id);
    return { id, object: 'context.deleted', deleted: true };
  }

  /** @throws ApiError 429 if the caller's contexts would hold more tokens than its key allows */
  #refuseAboveLimit({ name, limits }: Caller, tokens: number): void {
    const most = limits.pinnedTokens;
    if (most === undefined) return;
    const pinned = this.#tokensOf(name);
    if (pinned + tokens <= most) return;
    const figures = `${pinned} tokens are pinned, the prompt has ${tokens}, and the key of '${name}' allows ${most}`;
    throw new ApiError(429, `Cannot pin a context: ${figures}`, { code: 'key_limit', param: 'pinned_tokens' });
  }

  #tokensOf(name: string): number {
    const own = [...this.#contexts.values()].filter(({ tenant }) => tenant === name);
    return own.reduce((sum, { order }) => sum + order.request.prompt.length, 0);
  }

  #release(id: string): void {
    const entry = this.#contexts.get(id);
    this.#contexts.delete(id);
    entry?.cluster.unpin(id);
  }

  #find(id: string, tenant: string): PinnedContext {
    const entry = this.#contexts.get(id);
    if (entry !== undefined && entry.tenant === tenant && entry.pinned !== undefined) return entry;
    throw new ApiError(404, `Cannot find context '${oneLine(id, 128)}': it was never pinned, or it has expired`, {
      code: 'context_not_found',
    });
  }

  #pinAndWait(entry: PinnedContext, field: string, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const cancel = (): void => {
        this.#release(entry.id);
        reject(clientDisconnected());
      };
      if (signal.aborted) throw clientDisconnected();
      signal.addEventListener('abort', cancel, { once: true });
      this.#contexts.set(entry.id, entry);
      this.#pin(entry, (refused) => {
        signal.removeEventListener('abort', cancel);
        if (refused === undefined) resolve();
        else reject(errorOf(refused, field));
      });
    });
  }

  /** @param onResult called when the prefix is pinned or refused */
  #pin(entry: PinnedContext, onResult: (refused: Refused | undefined) => void): void {
    const { id, order, ttlS, cluster } = entry;
    cluster.pin({ ...order, ttlUs: ttlS * 1e6 }, (state, instance = 0) => {
      if (state.kind === 'pinned') {
        // Clocks of threads differ, so the time is computed here. The response to a renewal has no tokens.
        const expiresMs = Math.max(entry.pinned?.expiresMs ?? 0, Date.now() + entry.ttlS * 1000);
        entry.pinned = { tokens: entry.pinned?.tokens ?? state.tokens, instance, expiresMs };
        onResult(undefined);
        return;
      }
      if (this.#contexts.delete(id)) onResult(state.kind === 'refused' ? state : instanceFailed);
    });
  }
}

function isPrefix(short: Int32Array, long: Int32Array): boolean {
  return short.length <= long.length && short.every((id, i) => id === long[i]);
}

const instanceFailed: Refused = {
  kind: 'refused',
  why: 'failed',
  message: 'Cannot pin a prefix: its instance has failed',
};

async function promptOf(body: z.infer<typeof contextSchema>, { model, encode }: EndpointContext): Promise<Int32Array> {
  if (body.messages !== undefined) {
    const { tokens } = await chatPrompt({ messages: body.messages, tools: body.tools }, model, encode);
    return tokens;
  }
  const [prompt, second] = await completionPrompts({ prompt: body.prompt ?? '' }, model, encode);
  if (second !== undefined || prompt === undefined)
    throw badField('prompt', "Cannot pin a context: 'prompt' is a list: send one prompt per context");
  return prompt;
}

/** The request that computes the prompt if it is not cached. */
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

function describe({ id, model, createdMs, ttlS, order, pinned }: PinnedContext) {
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
