// An external engine as instances of a NATS cluster: each data-parallel rank speaks the protocol of own instances.

import type { EngineLoad } from '../../core/fleet/engine-load.ts';
import { rootDigest } from '../../core/kvcache/block-hash.ts';
import { PrefixIndex } from '../../core/kvcache/events/prefix-index.ts';
import type { Agreement } from '../../core/membership/agreement.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import type { KvEventBatch } from '../../core/protocol/kv-events.ts';
import type { GenerationRequest, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { Refusal } from '../../core/protocol/refusals.ts';
import { TokenContent } from '../../core/scheduler/batching/token-content.ts';
import { digestWords } from '../../util/blake2s.ts';
import { pageTokens } from '../../util/step.ts';
import { ClusterInstance } from '../processes/cluster-instance.ts';
import type { ClusterProcess } from '../processes/peer-session.ts';
import { nowUs } from '../threads/alarm.ts';
import type { BlockRoot, OutputsMessage, ToThread } from '../threads/thread-protocol.ts';
import { type EngineCallPart, engineParamsMax } from '../wire/engine-messages.ts';
import type { EngineDescription, EngineDialect, HandOffDialect } from './engine-dialect.ts';
import { prefillEnd } from './engine-hand-offs.ts';
import type { EngineAnswer } from './engine-http.ts';
import { ExternalEngine, type ExternalEngineOptions } from './external-engine.ts';
import { ExternalInstance, refusedConnection, unsupportedFailure } from './external-instance.ts';

export interface JoinedEngineOptions extends Omit<ClusterProcess, 'incarnation'> {
  readonly engine: ExternalEngineOptions;
  readonly agreement: Agreement;
  /** @see engineRoot */
  readonly root: BlockRoot;
  /** Token ids are less than this. */
  readonly vocabSize: number;
  /** The engine's host as other engines reach it; that of its URL unless given. */
  readonly host?: string | undefined;
  /** Another process has joined under this name. */
  onReplaced(): void;
}

/** An engine whose requests do not advance for so long is down. */
const stallUsMax = 120_000_000;

type Outputs = Omit<OutputsMessage, 'kind' | 'snapshot'>;
const nothing: Outputs = {
  ...{ events: [], prefilled: [], released: [], steps: [], pins: [], kvEvents: [], kvSnapshot: undefined },
};

/** The instances leave the cluster while the engine is down, and join again as new incarnations. */
export class JoinedEngine {
  readonly #options: JoinedEngineOptions;
  readonly #engine: ExternalEngine;
  #ranks: EngineRank[] = [];
  #incarnation = 0;
  #isDraining = false;

  constructor(options: JoinedEngineOptions) {
    this.#options = options;
    this.#engine = new ExternalEngine(options.engine, {
      onUp: (_, dialect, description) => this.#onUp(dialect, description),
      onDown: (_, why) => {
        options.log(`Engine ${options.engine.url} is down: ${why}`);
        this.#leave();
      },
      onPolled: () => this.#onPolled(),
      onLoad: (_, rank, load) => this.#ranks[rank]?.observe(load),
      log: (message) => options.log(message),
    });
  }

  /** Resolves when the engine has answered, or failed to, once. */
  get settled(): Promise<void> {
    return this.#engine.settled;
  }

  /** Instances in the cluster. */
  get serving(): number {
    return this.#ranks.length;
  }

  /** Accepts no further requests; resolves when those that run have ended. */
  async drain(): Promise<void> {
    this.#isDraining = true;
    await Promise.all(this.#ranks.map((rank) => rank.drain()));
  }

  async close(): Promise<void> {
    this.#engine.close();
    await this.#leave();
  }

  #onUp(dialect: EngineDialect, description: EngineDescription): void {
    // New instances would accept requests just before the process ends.
    if (this.#isDraining) return;
    const { name, log, engine } = this.#options;
    const { sources } = description;
    // Of two incarnations of one name, the later one has the higher number.
    this.#incarnation = Math.max(Date.now(), this.#incarnation + 1);
    this.#ranks = sources.map(
      (_, rank) =>
        new EngineRank(
          { ...this.#options, name: sources.length === 1 ? name : `${name}-${rank}`, incarnation: this.#incarnation },
          { engine: this.#engine, dialect, description, rank },
        ),
    );
    const events = this.#ranks.some(({ hasKvEvents }) => hasKvEvents) ? 'with' : 'without';
    log(`Engine ${engine.url} (${dialect.kind}, ${events} KV events) has joined as ${name}`);
  }

  #onPolled(): void {
    for (const rank of this.#ranks) {
      const stalledSinceUs = rank.polled();
      if (stalledSinceUs === undefined || nowUs() - stalledSinceUs <= stallUsMax) continue;
      this.#engine.fail(`no request has advanced for ${stallUsMax / 1e6} s`);
      return;
    }
  }

  async #leave(): Promise<void> {
    await Promise.all(this.#ranks.splice(0).map((rank) => rank.close()));
  }
}

interface Engine {
  readonly engine: ExternalEngine;
  readonly dialect: EngineDialect;
  readonly description: EngineDescription;
  readonly rank: number;
}

/** Takes the place of the thread of an own instance. What the engine cannot do is refused. */
class EngineRank {
  readonly #engine: ExternalEngine;
  readonly #handOff: HandOffDialect;
  readonly #root: BlockRoot;
  readonly #hashKey: Uint32Array;
  readonly #instance: ExternalInstance;
  readonly #cluster: ClusterInstance;
  /** The blocks of the engine: an answer that states no cached tokens has those of the longest held prefix. */
  readonly #index = new PrefixIndex({ instances: 1, blocks: 4_096, remembered: 0 });
  #isClosed = false;

  constructor(process: JoinedEngineOptions & ClusterProcess, { engine, dialect, description, rank }: Engine) {
    const { agreement, root, host, log } = process;
    this.#engine = engine;
    this.#handOff = description.handOff ?? dialect.handOff;
    this.#root = root;
    this.#hashKey = Uint32Array.from(agreement.hashKey);
    this.#instance = new ExternalInstance({
      ...{ http: engine.http, dialect, description, model: description.models[0], rank },
      blocks: { root, hashKey: this.#hashKey, incarnation: 1 },
      listener: {
        onEvents: (events) => this.#output({ events }),
        onKvEvents: (batch) => this.#onKvEvents(batch),
        onBroken: (id, why) => void this.#onBroken(id, why),
        onReleased: (id, why, refusal) => this.#released(id, why, refusal),
        log: (message) => log(message),
      },
    });
    const thread = { send: (command: ToThread) => this.#carryOut(command), interrupt: (): void => {} };
    this.#cluster = new ClusterInstance({
      ...{
        ...process,
        thread,
        role: description.role ?? 'mixed',
        canSwitchRole: false,
        capacityTokens: capacityOf(description),
      },
      ...{ fetchBytesPerToken: undefined, stageLayers: undefined, pagesAddress: undefined, isa: undefined },
      isManager: () => undefined,
      engine: {
        info: {
          ...{ kind: dialect.kind, order: this.#handOff.order, host: host ?? engine.http.url.hostname },
          ...(description.bootstrapPort !== undefined && { port: description.bootstrapPort }),
        },
        call: (request, part) => this.#callPart(request, part),
      },
    });
    this.#cluster.start(this.#instance.snapshot());
  }

  get hasKvEvents(): boolean {
    return this.#instance.hasKvEvents;
  }

  observe(load: EngineLoad): void {
    this.#instance.observe(load);
  }

  /** Since when requests run and none has advanced; undefined: none runs. */
  polled(): number | undefined {
    this.#instance.releaseStalled(nowUs());
    this.#output({}, this.#instance.snapshot());
    return this.#instance.stalledSinceUs;
  }

  drain(): Promise<void> {
    return this.#cluster.drain();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#instance.close();
    await this.#cluster.close();
  }

  #carryOut(command: ToThread): void {
    switch (command.kind) {
      case 'submit':
        this.#submit(command.request);
        break;
      case 'cancel':
        this.#instance.cancel(command.id);
        break;
      case 'requestSnapshot':
        this.#later({ kvSnapshot: this.#instance.kvSnapshot() });
        break;
      case 'pin': {
        const message = 'Cannot pin a prefix: external engines evict by their own order';
        this.#later({ pins: [[command.id, { kind: 'refused', why: 'failed', message }]] });
        break;
      }
      // It has no steps to record, no peers, and nothing pinned.
      default:
        break;
    }
  }

  #submit(request: GenerationRequest): void {
    const refused = unsupportedFailure(request);
    if (refused !== undefined) this.#later({ events: [[request.id, refused]] });
    else this.#instance.submit(request, this.#cachedTokens(request));
  }

  /** Its part of a hand-off. The gateway carries out the others. */
  #callPart(request: GenerationRequest, part: EngineCallPart): void {
    const refused = unsupportedFailure(request);
    if (refused !== undefined) {
      this.#later({ events: [[request.id, refused]] });
      return;
    }
    const rendezvous = { port: undefined, ...part.rendezvous };
    const cached = this.#cachedTokens(request);
    if (part.leg === 'prefill') {
      const fields = this.#handOff.prefill(rendezvous);
      this.#instance.prefill(request, cached, fields, (answer) => void this.#onPrefillEnd(request.id, answer));
      return;
    }
    const params: unknown = part.params === undefined ? undefined : JSON.parse(part.params);
    this.#instance.submit(request, cached, this.#handOff.decode(rendezvous, params));
  }

  async #onPrefillEnd(id: RequestId, answer: EngineAnswer | undefined): Promise<void> {
    const end = await prefillEnd(this.#engine, this.#handOff, answer);
    if (this.#isClosed) return;
    if (end.kind === 'engineFailed') this.#engine.fail(end.why);
    else if (end.kind === 'failed')
      this.#cluster.onPrefillAnswer(id, { kind: 'failed', why: end.why, overloaded: end.refusal !== undefined });
    else {
      const params = JSON.stringify(end.params) as string | undefined;
      const isUsable = params !== undefined && params.length <= engineParamsMax;
      this.#cluster.onPrefillAnswer(id, { kind: 'prefilled', ...(isUsable && { params }) });
    }
  }

  #cachedTokens({ prompt, salt }: GenerationRequest): number {
    const { chain } = new TokenContent(prompt, rootDigest(this.#root, salt, this.#hashKey));
    let held = 0;
    while (held < chain.blocks && this.#index.holds(0, chain.words, held * digestWords)) held++;
    return Math.min(held * pageTokens, prompt.length - 1);
  }

  #onKvEvents(batch: KvEventBatch): void {
    this.#index.apply(0, batch);
    // The arrays of a batch may be longer than it, those of a message may not.
    const { changes, words, stored } = batch;
    const own = { words: words.slice(0, changes * digestWords), stored: stored.slice(0, changes) };
    this.#output({ kvEvents: [{ ...batch, ...own }] });
  }

  /** The requests of a dead engine continue elsewhere at once; with a live one only this stream broke. */
  async #onBroken(id: RequestId, why: string): Promise<void> {
    const unhealthy = await this.#engine.unhealthy();
    if (this.#isClosed) return;
    if (unhealthy !== undefined) this.#engine.fail(unhealthy);
    else if (why === 'ECONNREFUSED') this.#released(id, why, refusedConnection(why));
    else this.#released(id, `its stream broke: ${why}`);
  }

  /** @param refusal the gateway tries the request on engines that have not refused it */
  #released(id: RequestId, why: string, refusal?: Refusal): void {
    this.#output({ released: [refusal === undefined ? [id, why] : [id, why, refusal]] });
  }

  /** Within a message of the cluster the answer follows it. */
  #later(outputs: Partial<Outputs>): void {
    queueMicrotask(() => this.#output(outputs));
  }

  #output(outputs: Partial<Outputs>, snapshot?: InstanceSnapshot): void {
    if (!this.#isClosed) this.#cluster.onOutputs({ kind: 'events', ...nothing, ...outputs, snapshot });
  }
}

/** A request that exceeds the memory or the context of an engine goes to another one. */
function capacityOf({ capacityTokens, contextTokens }: EngineDescription): number {
  return Math.min(capacityTokens ?? Number.MAX_SAFE_INTEGER, contextTokens ?? Number.MAX_SAFE_INTEGER);
}
