// Requests about files, batches and contexts of any gateway of the cluster, at any gateway: the gateway that an id names
// answers, and lists are those of all gateways.
import type { Context } from 'hono';
import { z } from 'zod';
import {
  type Cancelled,
  type ForwardedRequest,
  type ForwardedResponse,
  forwardedBodyBytesMax,
  type GatewayPeers,
  isForwardedPath,
} from '../../core/protocol/ports.ts';
import { readBytes } from '../http/body.ts';
import type { Owners } from '../http/data-folder.ts';
import { ApiError } from '../http/errors.ts';
import type { Env } from '../http/route-context.ts';
import type { Caller } from '../keys/caller.ts';
import { gatewayKeyOf } from './gateway-ids.ts';

/** Bytes of the list of one gateway at most. */
const listBytesMax = 2 ** 26;
/** Responses that cannot have the body of an answer: no route sends them. */
const withoutBody: ReadonlySet<number> = new Set([204, 205, 304]);
const retryAfterMs = 5_000;

/** A file, batch or context in a list. */
export interface Listed {
  readonly id: string;
  readonly created_at: number;
}

const listSchema = z.looseObject({ data: z.array(z.looseObject({ id: z.string(), created_at: z.number() })) });

/** The environment of a request that another gateway has forwarded. */
interface ForwardedEnv {
  readonly forwardedFor: Caller;
  /** @see GatewayPeers.onRequest */
  readonly cancelled: Cancelled;
}

/** The caller of a request that another gateway has forwarded, and authorised; undefined: a client sent it here. */
export function forwardedCaller({ env }: Context<Env>): Caller | undefined {
  return (env as Partial<ForwardedEnv> | undefined)?.forwardedFor;
}

/** Aborted when the gateway that has forwarded the request does not wait for the answer; undefined: a client sent it here. */
export function forwardedCancel({ env }: Context<Env>): Cancelled | undefined {
  return (env as Partial<ForwardedEnv> | undefined)?.cancelled;
}

export class Forwarding {
  /** Undefined: the gateway is alone. */
  readonly #peers: GatewayPeers | undefined;
  readonly #owners: Owners;

  constructor(peers: GatewayPeers | undefined, owners: Owners) {
    this.#peers = peers;
    this.#owners = owners;
  }

  /** Middleware of the routes with an id: forwards to the gateway that the id names. */
  readonly byId = async (c: Context<Env>, next: () => Promise<void>): Promise<Response | undefined> => {
    const key = this.elsewhere(c, c.req.param('id') ?? '');
    if (key === undefined) {
      await next();
      return undefined;
    }
    const hasBody = c.req.method === 'POST';
    return this.forward(c, key, hasBody ? await readBytes(c.req.raw, forwardedBodyBytesMax) : new Uint8Array());
  };

  /** The key of another gateway that has the file, batch or context; undefined: this one answers. */
  elsewhere(c: Context<Env>, id: string): string | undefined {
    const key = gatewayKeyOf(id);
    const isHere = this.#peers === undefined || key === this.#peers.key || forwardedCaller(c) !== undefined;
    // Other methods and paths have no route.
    const { path } = c.req;
    const hasRoute = methodOf(c) !== undefined && isForwardedPath(path);
    return isHere || !hasRoute ? undefined : key;
  }

  /** @throws ApiError 503 naming a gateway that cannot be reached, 413 for a long body */
  async forward(c: Context<Env>, key: string, body: Uint8Array): Promise<Response> {
    const { status, headers, body: pieces } = await this.#send(c, key, methodOf(c) ?? 'GET', body);
    if (withoutBody.has(status)) {
      await pieces[Symbol.asyncIterator]().return?.();
      throw unreachable(`gateway ${key} answers with ${status}`);
    }
    return new Response(streamOf(pieces), {
      status,
      headers: headers.map(([name, value]): [string, string] => [name, value]),
    });
  }

  /**
   * Files, batches or contexts of all gateways, oldest first, in the same order at every gateway. A forwarded request
   * lists those of this gateway alone.
   * @throws ApiError 503 naming a gateway of the cluster that does not answer
   */
  async listed<T extends Listed>(c: Context<Env>, own: readonly T[]): Promise<readonly Listed[]> {
    if (this.#peers === undefined || forwardedCaller(c) !== undefined) return own;
    const others = this.#peers.keys().map(async (key) => [key, await this.#listOf(c, key)] as const);
    const lists = [[this.#peers.key, own] as const, ...(await Promise.all(others))];
    const byKey = lists.sort(([a], [b]) => (a < b ? -1 : 1)).flatMap(([, list]) => list);
    return byKey.sort((a, b) => a.created_at - b.created_at);
  }

  async #listOf(c: Context<Env>, key: string): Promise<readonly Listed[]> {
    const { status, body } = await this.#send(c, key, 'GET', new Uint8Array());
    const text = await textOf(body).catch((error: unknown) => {
      throw unreachable(error instanceof Error ? error.message : String(error));
    });
    const parsed = status === 200 ? listSchema.safeParse(jsonOf(text)) : undefined;
    if (parsed?.success !== true) throw unreachable(`gateway ${key} answers the list with ${status}`);
    return parsed.data.data;
  }

  async #send(
    c: Context<Env>,
    key: string,
    method: ForwardedRequest['method'],
    body: Uint8Array,
  ): Promise<ForwardedResponse> {
    if (body.length > forwardedBodyBytesMax)
      throw new ApiError(413, `Cannot forward request: the body is larger than ${forwardedBodyBytesMax} bytes`, {
        code: 'body_too_large',
      });
    const answer = await this.#peers?.send(key, {
      method,
      path: c.req.path,
      owner: this.#owners.ownerOf(c.get('caller').name),
      requestId: c.get('responseId'),
      // Not a Buffer, which messages cannot hold.
      body: Uint8Array.from(body),
    });
    if (typeof answer === 'object') return answer;
    throw unreachable(answer ?? `gateway ${key} is not in the cluster`);
  }
}

function methodOf({ req: { method } }: Context<Env>): ForwardedRequest['method'] | undefined {
  return method === 'GET' || method === 'POST' || method === 'DELETE' ? method : undefined;
}

/** @throws Error if the gateway is lost, or the text too long */
async function textOf(body: AsyncIterable<Uint8Array>): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of body) {
    bytes += piece.length;
    if (bytes > listBytesMax) throw new Error(`its list is longer than ${listBytesMax} bytes`);
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString();
}

/** Undefined if the text is not JSON. */
function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Answers requests of other gateways as those of clients here, without their keys, which the other gateway has checked. */
export function answerForwarded(
  peers: GatewayPeers,
  keys: { callerOfOwner(owner: string): Caller },
  answer: (request: Request, env: ForwardedEnv) => Response | Promise<Response>,
): void {
  peers.onRequest(async ({ method, path, owner, requestId, body }, cancelled) => {
    const headers = { 'content-type': 'application/json', 'x-request-id': requestId };
    const content = method === 'POST' ? { body: Uint8Array.from(body) } : {};
    const request = new Request(`http://gateway${path}`, { method, headers, ...content });
    const response = await answer(request, { forwardedFor: keys.callerOfOwner(owner), cancelled });
    const kept = ['content-type', 'retry-after', 'allow'];
    return {
      status: response.status,
      headers: [...response.headers].filter(([name]) => kept.includes(name)),
      body: response.body ?? emptyBody(),
    };
  });
}

async function* emptyBody(): AsyncGenerator<Uint8Array> {}

function unreachable(why: string): ApiError {
  return new ApiError(503, `Cannot serve request: ${why}`, { code: 'gateway_unreachable', retryAfterMs });
}

/** Pieces are requested as the client reads them. */
function streamOf(pieces: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const iterator = pieces[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>(
    {
      pull: async (controller) => {
        const { done, value } = await iterator.next();
        if (done === true) controller.close();
        else controller.enqueue(value);
      },
      cancel: async () => {
        await iterator.return?.();
      },
    },
    { highWaterMark: 0 },
  );
}
