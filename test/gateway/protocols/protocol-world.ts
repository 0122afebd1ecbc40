// A gateway over HTTP for official clients: its model answers each request with the text that a test sets.

import type {
  ClusterPort,
  GenerationEvent,
  GenerationRequest,
  PinListener,
  PinOrder,
} from '../../../src/core/protocol/ports.ts';
import { type Gateway, listen } from '../../../src/gateway/http/server.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { ChatTemplate } from '../../../src/text/template/chat-template.ts';
import { decodeUtf8 } from '../../../src/text/utf8.ts';
import { toolTemplates } from '../../text/tools/templates.ts';
import { bytesOf } from '../openai/byte-tokenizer.ts';
import { accepted, finished, ScriptedPort, started, tokens } from '../scripted-port.ts';
import { gatewayOptions, noCluster } from '../world.ts';

export const apiKey = 'secret';
export const contextTokens = 4000;

/** Counts the requests that the gateway cancels, whether or not their scripts have ended. */
class ProtocolPort extends ScriptedPort {
  cancels = 0;

  override cancel(id: string): void {
    this.cancels++;
    super.cancel(id);
  }
}

/** Pins every prefix at once. */
class RecordingCluster implements ClusterPort {
  readonly pins = new Map<string, PinOrder>();
  isFull = false;
  requestTrace = noCluster.requestTrace;
  recentTraces = noCluster.recentTraces;
  sharedPrefixes = noCluster.sharedPrefixes;
  onEnded = noCluster.onEnded;
  roles = noCluster.roles;
  switchRole = noCluster.switchRole;

  pin(order: PinOrder, listener: PinListener): void {
    if (!this.isFull) this.pins.set(order.id, order);
    const state = { kind: 'pinned', tokens: order.request.prompt.length, untilUs: 0 } as const;
    listener(this.isFull ? { kind: 'refused', why: 'memory', message: 'Cannot pin' } : state, 0);
  }

  unpin(id: string): void {
    this.pins.delete(id);
  }
}

export class ProtocolWorld {
  readonly cluster: RecordingCluster;
  readonly port: ProtocolPort;
  readonly #gateway: Gateway;
  #events: readonly GenerationEvent[] = [];

  private constructor(port: ProtocolPort, cluster: RecordingCluster, gateway: Gateway) {
    this.cluster = cluster;
    this.port = port;
    this.#gateway = gateway;
  }

  static async start(): Promise<ProtocolWorld> {
    let world: ProtocolWorld | undefined;
    const port = new ProtocolPort((request) => world?.events(request) ?? []);
    const base = gatewayOptions(port);
    const model = { ...base.model, contextTokens, chatTemplate: new ChatTemplate(toolTemplates.qwen3) };
    const keys = new ApiKeys({ users: [apiKey], admins: [] });
    const cluster = new RecordingCluster();
    const grammars = { compile: () => Promise.resolve(undefined) };
    const gateway = await listen({ ...base, model, keys, cluster, grammars }, '127.0.0.1', 0);
    world = new ProtocolWorld(port, cluster, gateway);
    return world;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#gateway.port}`;
  }

  /** The text of the last prompt. */
  get prompt(): string {
    return decodeUtf8(Uint8Array.from(this.request.prompt));
  }

  /** Seconds and texts of the pinned prefixes. */
  get pinned(): [number, string][] {
    return [...this.cluster.pins.values()].map(({ ttlUs, request }) => [
      ttlUs / 1e6,
      decodeUtf8(Uint8Array.from(request.prompt)),
    ]);
  }

  get request(): GenerationRequest {
    const request = this.port.requests.at(-1);
    if (request === undefined) throw new Error('no request has reached the port');
    return request;
  }

  /** The next outputs. */
  outputs(text: string, reason: 'stop' | 'length' = 'stop', cached = 2): void {
    this.plays([accepted, started(cached), ...bytesOf(text).map((id) => tokens([id])), finished(reason)]);
  }

  plays(events: readonly GenerationEvent[]): void {
    this.#events = events;
  }

  events({ maxTokens }: GenerationRequest): readonly GenerationEvent[] {
    const output = this.#events.filter(({ kind }) => kind === 'tokens').slice(0, maxTokens);
    return this.#events.filter((event) => event.kind !== 'tokens' || output.includes(event));
  }

  stop(): Promise<void> {
    return this.#gateway.drain({ waitMs: 0, timeoutMs: 0 });
  }
}

/** The output of a model that calls a tool. */
export const callText = (name: string, args: object): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
