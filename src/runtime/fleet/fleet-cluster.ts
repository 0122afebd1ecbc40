// An inference port over external engines: the conductor runs on this thread, and each rank of an engine is an instance.
import { webcrypto } from 'node:crypto';
import type { EngineLoad } from '../../core/fleet/engine-load.ts';
import { engineRoot } from '../../core/fleet/engine-root.ts';
import { EngineSteps } from '../../core/fleet/engine-steps.ts';
import type { PublishedBlocks } from '../../core/fleet/published-blocks.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, InstanceSnapshot, PinOrder } from '../../core/protocol/ports.ts';
import type { Refusal } from '../../core/protocol/refusals.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import type { PlacerConfig } from '../../core/router/placement/placer.ts';
import { TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { tokenRequests } from '../../core/router/token-requests.ts';
import { batchLimits, batchLimitsWith } from '../../core/scheduler/executor/token-limits.ts';
import { canServe, emptySnapshot, snapshotAfterLoss, withEarlier } from '../snapshots/metric-snapshots.ts';
import { nowUs } from '../threads/alarm.ts';
import { ConductorDriver, type ForwardTargets } from '../threads/conductor-driver.ts';
import type { OutputsMessage } from '../threads/thread-protocol.ts';
import type { EngineDescription, EngineDialect, EngineRole, HandOffDialect } from './engine-dialect.ts';
import { drawBootstrapRoom, EngineHandOffs, type HandOffCalls, prefillEnd } from './engine-hand-offs.ts';
import type { EngineAnswer, EngineHttp } from './engine-http.ts';
import { ExternalEngine, type ExternalEngineListener, type ExternalEngineOptions } from './external-engine.ts';
import { ExternalInstance, refusedConnection, unsupportedFailure } from './external-instance.ts';
import { GatewaySnapshots, type OtherGateways, snapshotPath } from './gateway-snapshots.ts';
import { reasonOf } from './reason-of.ts';

export interface FleetClusterOptions {
  readonly engines: readonly ExternalEngineOptions[];
  /** Other engines may be added. */
  readonly grows?: boolean | undefined;
  /** The model's name at the engines; undefined: the first one of the first engine of the list that answers. */
  readonly model?: string | undefined;
  readonly admission: AdmissionSettings;
  readonly stepUs?: number | undefined;
  /** Largest number of requests in the gateway at once. */
  readonly queueMax: number;
  /** Placement policy; cache-aware unless given. */
  readonly placement?: PlacerConfig<GenerationRequest>['kind'] | undefined;
  /** Limit of a request's duration; none unless given. */
  readonly requestTimeoutUs?: number | undefined;
  /** Other gateways in front of the same engines; none unless given. */
  readonly gateways?: OtherGateways | undefined;
  /** Receives the blocks of the engines, to publish them; none unless given. */
  readonly kvEvents?: PublishedBlocks | undefined;
  /** Steps are recorded as the streams show them; off unless given. */
  readonly traces?: boolean | undefined;
  log(message: string): void;
}

/** Data-parallel ranks of all engines together. */
const ranks = { least: 64, perEngine: 16, added: 192 };
const attemptsMax = 4;
/** An engine with streams of which none advances for so long is down, whatever it answers. */
const stallUsMax = 120_000_000;

/** Prompts of one model only reach a fleet: nothing else distinguishes its blocks. */
const root = engineRoot('fleet');

type Outputs = Omit<OutputsMessage, 'kind' | 'snapshot' | 'steps'>;
const nothing: Outputs = { events: [], prefilled: [], released: [], pins: [], kvEvents: [], kvSnapshot: undefined };

interface Slot {
  engine: ExternalEngine;
  rank: number;
  name: string;
  /** Its engine was removed: another one may take the slot. */
  isFree: boolean;
  incarnation: number;
  instance: ExternalInstance | undefined;
  role: EngineRole;
  dialect: EngineDialect;
  handOff: HandOffDialect;
  bootstrapPort: number | undefined;
  /** Why its bootstrap server has not answered the latest query. */
  queryFailure: string | undefined;
  /** Counters of earlier incarnations. */
  earlier: InstanceSnapshot | undefined;
  snapshot: InstanceSnapshot;
}

export class FleetCluster extends ConductorDriver {
  readonly #hashKey: Uint32Array;
  readonly #slots: Slot[] = [];
  readonly #engines = new Set<ExternalEngine>();
  readonly #engineListener: ExternalEngineListener;
  readonly #snapshots: GatewaySnapshots | undefined;
  readonly #freedListeners: ((url: string) => void)[] = [];
  readonly #slotsMax: number;
  readonly #handOffs: EngineHandOffs<unknown>;
  #model: string | undefined;
  #contextTokens: number | undefined;

  constructor(options: FleetClusterOptions) {
    const added = options.grows === true ? ranks.added : 0;
    const slotsMax = Math.max(ranks.least, options.engines.length * ranks.perEngine + added);
    const hashKey = webcrypto.getRandomValues(new Uint32Array(4));
    super({
      placement: new TokenPlacement(hashKey, options.kvEvents),
      admission: new TokenAdmission(options.admission, slotsMax, batchLimitsWith(options.stepUs)),
      log: (line) => options.log(line),
      engineSteps: options.traces === true ? new EngineSteps(() => true) : undefined,
    });
    this.#hashKey = hashKey;
    this.#handOffs = new EngineHandOffs(this.#callsOfHandOffs());
    this.#model = options.model;
    this.#slotsMax = slotsMax;
    this.#snapshots = options.gateways && new GatewaySnapshots(options.gateways, (line) => options.log(line));
    const slots = Array.from({ length: slotsMax }, (_, slot) => slot);
    this.placement.begin(root, slots);
    this.startConductor(
      new Conductor<GenerationRequest>({
        instances: slots.map(() => ({ capacityTokens: 0, absent: true })),
        queueMax: options.queueMax,
        requests: tokenRequests,
        retries: { attemptsMax, requestTimeoutUs: options.requestTimeoutUs },
        placement: { ...this.placement.config, kind: options.placement ?? 'cache-aware' },
        admission: this.admission.config(this.placement.prefills),
        batchJobs: { memoryShare: batchLimits.background.memoryShare },
        recordsPlacements: true,
      }),
    );
    this.#engineListener = {
      onUp: (engine, dialect, description) => this.#onUp(engine, dialect, description),
      onDown: (engine, why) => this.#onDown(engine, why),
      onPolled: (engine) => this.#onPolled(engine),
      onLoad: (engine, rank, load) => this.#onLoad(engine, rank, load),
      log: (message) => this.log(message),
    };
    for (const engine of options.engines) {
      // Without a given name the first engine of the list that answers names the model.
      const earlier = options.model === undefined ? this.settled() : undefined;
      this.#engines.add(new ExternalEngine(engine, this.#engineListener, earlier));
    }
  }

  /** Undefined: the fleet has an engine of this URL. */
  addEngine(options: ExternalEngineOptions): ExternalEngine | undefined {
    if ([...this.#engines].some(({ url, isDraining }) => url === options.url && !isDraining)) {
      this.log(`Engine ${options.url} is not added while the fleet has another one of this URL`);
      return undefined;
    }
    const engine = new ExternalEngine(options, this.#engineListener);
    this.#engines.add(engine);
    return engine;
  }

  /** Lists the blocks of an engine for another gateway; undefined: there is none. */
  get blockListing(): { readonly path: string; answer(request: Request): Response } | undefined {
    const snapshots = this.#snapshots;
    if (snapshots === undefined) return undefined;
    // An engine that has left, or that drains, may have had the same URL.
    const slotOf = (url: string, rank: number): Slot | undefined =>
      this.#slots.find((slot) => isServing(slot) && slot.engine.http.url.href === url && slot.rank === rank);
    const answer = (request: Request): Response =>
      snapshots.serve(request, (url, rank) => slotOf(url, rank)?.instance?.engineSnapshot());
    return { path: snapshotPath, answer };
  }

  /** Connections to the engines that serve. */
  get servingEngines(): readonly EngineHttp[] {
    return [...this.#engines].filter(({ isUp, isDraining }) => isUp && !isDraining).map(({ http }) => http);
  }

  onFreed(listener: (url: string) => void): void {
    this.#freedListeners.push(listener);
  }

  /**
   * The engine gets no further requests, and leaves when those that it has have ended.
   * @param isGone it has ended: they continue elsewhere at once
   */
  removeEngine(engine: ExternalEngine, isGone: boolean): void {
    if (!this.#engines.has(engine)) return;
    if (!isGone && engine.isUp) {
      if (engine.isDraining) return;
      engine.drain();
      for (const [instance, slot] of this.#slots.entries())
        if (slot.engine === engine) this.feed({ kind: 'instanceDraining', instance });
      this.log(`Engine ${engine.url} drains: ${this.#servingText()}`);
      for (const listener of this.#freedListeners) listener(engine.url);
      this.#retireDrained(engine);
    } else this.#retire(engine, 'the engine was removed');
  }

  #retireDrained(engine: ExternalEngine): void {
    const isBusy = this.#slots.some((slot, instance) => {
      if (slot.engine !== engine) return false;
      if (slot.instance?.stalledSinceUs !== undefined) return true;
      return this.#handOffs.needs(instance);
    });
    if (!isBusy) this.#retire(engine, 'the engine has drained');
  }

  #retire(engine: ExternalEngine, why: string): void {
    this.#leave(engine, why);
    engine.close();
    this.#engines.delete(engine);
    for (const slot of this.#slots) if (slot.engine === engine) slot.isFree = true;
    this.log(`Engine ${engine.url} has left: ${this.#servingText()}`);
    for (const listener of this.#freedListeners) listener(engine.url);
  }

  /** Resolves when each engine has answered, or failed to, once. */
  async settled(): Promise<void> {
    await Promise.all([...this.#engines].map(({ settled }) => settled));
  }

  /** The model's name at the engines; undefined: none has joined. */
  get model(): string | undefined {
    return this.#model;
  }

  /** The longest context of an engine that has joined; undefined: none is known. */
  get contextTokens(): number | undefined {
    return this.#contextTokens;
  }

  /** Instances that serve. */
  get serving(): number {
    return this.#slots.filter(isServing).length;
  }

  #onUp(engine: ExternalEngine, dialect: EngineDialect, description: EngineDescription): void {
    const { models, contextTokens, sources } = description;
    const model = this.#model ?? models[0];
    if (!models.includes(model)) throw new Error(`it serves ${models.join(', ')}, and the fleet serves ${model}`);
    if (this.#takenSlots(engine) + sources.length > this.#slotsMax)
      throw new Error(`the fleet has at most ${this.#slotsMax} data-parallel ranks`);
    this.#model = model;
    this.#contextTokens = Math.max(this.#contextTokens ?? 0, contextTokens ?? 0) || undefined;
    try {
      for (const rank of sources.keys()) this.#join(engine, dialect, description, rank);
    } catch (error) {
      this.#leave(engine, 'not all of its ranks have joined');
      throw error;
    }
    const hasEvents = this.#slots.some((slot) => slot.engine === engine && slot.instance?.hasKvEvents === true);
    const events = hasEvents ? 'with KV events' : 'without KV events';
    this.log(`Engine ${engine.url} (${dialect.kind}, ${events}) has joined: ${this.#servingText()}`);
  }

  /** Slots of other engines. */
  #takenSlots(engine: ExternalEngine): number {
    return this.#slots.filter((slot) => !slot.isFree && slot.engine !== engine).length;
  }

  #join(engine: ExternalEngine, dialect: EngineDialect, description: EngineDescription, rank: number): void {
    const instance = this.#slotOf(engine, rank, description.sources.length, dialect);
    const slot = this.#slots[instance];
    const { role = 'mixed', handOff = dialect.handOff, bootstrapPort } = description;
    Object.assign(slot, { role, dialect, handOff, bootstrapPort });
    slot.incarnation++;
    slot.earlier = slot.snapshot;
    const { incarnation } = slot;
    const capacityTokens = capacityOf(description);
    const output = (outputs: Partial<Outputs>): void => {
      if (slot.incarnation === incarnation) this.onOutputs(instance, { ...nothing, ...outputs });
    };
    slot.instance?.close();
    slot.instance = undefined;
    const snapshots = this.#snapshots;
    const joined = new ExternalInstance({
      ...{ http: engine.http, dialect, description, model: this.#model ?? '', rank },
      blocks: { root, hashKey: this.#hashKey, incarnation, keepsTokens: snapshots !== undefined },
      requestSnapshot: snapshots && ((asked) => snapshots.request({ engine: engine.http.url.href, rank, ...asked })),
      listener: {
        onEvents: (events) => {
          for (const [id, event] of events) this.#handOffs.observe(instance, id, event);
          output({ events });
        },
        onKvEvents: (batch) => output({ kvEvents: [batch] }),
        onBroken: (id, why) => void this.#onBroken(slot, instance, id, why),
        onReleased: (id, why, refusal) => this.#released(instance, id, why, refusal),
        log: (message) => this.log(message),
      },
    });
    slot.instance = joined;
    this.admission.instanceJoined(instance, capacityTokens, capacityTokens);
    this.feed({ kind: 'instanceJoined', instance, incarnation, capacityTokens, role, keepsRole: true });
    // The index takes batches only behind a snapshot.
    output({ kvSnapshot: joined.kvSnapshot() });
    this.#reportUnreachable();
  }

  /** Engines of different kinds hand no prompts to each other. */
  #reportUnreachable(): void {
    if (this.#slots.every(({ role }) => role === 'mixed')) return;
    for (const [instance, { dialect, instance: serving }] of this.#slots.entries()) {
      if (serving === undefined) continue;
      const peers = [...this.#slots.keys()].filter((other) => this.#slots[other].dialect !== dialect);
      this.feed({ kind: 'unreachable', instance, peers });
    }
  }

  #slotOf(engine: ExternalEngine, rank: number, ranks: number, dialect: EngineDialect): InstanceIndex {
    const known = this.#slots.findIndex((slot) => slot.engine === engine && slot.rank === rank);
    if (known >= 0) return known;
    const name = ranks === 1 ? engine.url : `${engine.url}#${rank}`;
    const state = { isFree: false, instance: undefined, earlier: undefined, snapshot: emptySnapshot };
    const described = {
      role: 'mixed',
      dialect,
      handOff: dialect.handOff,
      bootstrapPort: undefined,
      queryFailure: undefined,
    } as const;
    const free = this.#slots.findIndex(({ isFree }) => isFree);
    if (free < 0) return this.#slots.push({ engine, rank, name, incarnation: 0, ...state, ...described }) - 1;
    Object.assign(this.#slots[free], { engine, rank, name, ...state, ...described });
    return free;
  }

  /** The requests of a dead engine continue elsewhere at once; with a live one only this stream broke. */
  async #onBroken(slot: Slot, instance: InstanceIndex, id: RequestId, why: string): Promise<void> {
    const { incarnation, engine } = slot;
    const unhealthy = await engine.unhealthy();
    if (slot.incarnation !== incarnation || slot.instance === undefined) return;
    if (unhealthy !== undefined && !engine.isDraining) engine.fail(unhealthy);
    else if (why === 'ECONNREFUSED') this.#released(instance, id, why, refusedConnection(why));
    else this.#released(instance, id, `its stream broke: ${why}`);
  }

  /** @param refusal the engine gets no other attempt of the request */
  #released(instance: InstanceIndex, id: RequestId, why: string, refusal?: Refusal): void {
    if (this.#handOffs.has(id)) this.#handOffs.step(id, { kind: 'decodeEnded', why }, refusal);
    else this.feed({ kind: 'released', instance, id, why, refusal });
  }

  #onDown(engine: ExternalEngine, why: string): void {
    this.#leave(engine, `the engine failed: ${why}`);
    this.log(`Engine ${engine.url} is down: ${why}: ${this.#servingText()}`);
    if (engine.isDraining) this.#retire(engine, why);
  }

  #servingText(): string {
    return `${this.serving} ${this.serving === 1 ? 'instance serves' : 'instances serve'}`;
  }

  /** The instances of the engine fail. */
  #leave(engine: ExternalEngine, why: string): void {
    for (const [instance, slot] of this.#slots.entries()) {
      if (slot.engine !== engine || slot.instance === undefined) continue;
      slot.snapshot = snapshotAfterLoss(this.#snapshotOf(slot));
      slot.instance.close();
      slot.instance = undefined;
      this.feed({ kind: 'instanceFailed', instance, why });
      this.#handOffs.instanceLeft(instance);
    }
  }

  #onLoad(engine: ExternalEngine, rank: number, load: EngineLoad): void {
    const instance = this.#slots.findIndex((slot) => slot.engine === engine && slot.rank === rank);
    const others = this.#slots[instance]?.instance?.observe(load);
    if (others !== undefined) this.feed({ kind: 'othersLoad', instance, others });
  }

  #onPolled(engine: ExternalEngine): void {
    for (const [instance, slot] of this.#slots.entries()) {
      if (slot.engine !== engine || slot.instance === undefined) continue;
      slot.snapshot = this.#snapshotOf(slot);
      this.admission.observe(instance, slot.snapshot);
      const { stalledSinceUs } = slot.instance;
      if (stalledSinceUs !== undefined && nowUs() - stalledSinceUs > stallUsMax) {
        engine.fail(`no request has advanced for ${stallUsMax / 1e6} s`);
        return;
      }
      slot.instance.releaseStalled(nowUs());
    }
    if (engine.isDraining) this.#retireDrained(engine);
  }

  #snapshotOf({ instance, earlier, snapshot, name }: Slot): InstanceSnapshot {
    return instance === undefined ? { ...snapshot, name } : { ...withEarlier(earlier, instance.snapshot()), name };
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#slots.map((slot) => this.#snapshotOf(slot));
  }

  roles(): readonly InstanceRole[] {
    return this.#slots.map(({ role, engine }) => (engine.isDraining ? 'store' : role));
  }

  switchRole(): string {
    return 'an external engine keeps its role';
  }

  async close(): Promise<void> {
    this.stopTimers();
    for (const engine of this.#engines) engine.close();
    for (const { instance } of this.#slots) instance?.close();
  }

  protected notReadyReason(): ReturnType<ConductorDriver['notReadyReason']> {
    const roles = this.#slots.filter(isServing).map(({ role }) => role);
    if (canServe(roles)) return undefined;
    const message =
      roles.length === 0
        ? `none of ${this.#engines.size} engines serves`
        : `${this.#servingText()} (${roles.join(', ')}), which is no complete set of roles`;
    return { kind: 'incomplete', message };
  }

  protected onRoleSwitched(): void {}

  protected forwardTo(instance: InstanceIndex, request: GenerationRequest, { decodeAt }: ForwardTargets): void {
    const slot = this.#slots[instance];
    const refused = unsupportedFailure(request);
    if (refused !== undefined) {
      queueMicrotask(() => this.onOutputs(decodeAt ?? instance, { ...nothing, events: [[request.id, refused]] }));
      return;
    }
    if (decodeAt === undefined) {
      if (slot?.instance === undefined) this.#releaseLater(instance, request.id);
      else slot.instance.submit(request, this.cachedTokensAt(instance, request));
      return;
    }
    const { hostname: host } = slot.engine.http.url;
    const rendezvous = { host, port: slot.bootstrapPort, bootstrapRoom: drawBootstrapRoom() };
    this.#handOffs.start({ order: slot.handOff.order, request, from: instance, to: decodeAt, rendezvous });
  }

  /** The instance has left while its event was carried out. */
  #releaseLater(instance: InstanceIndex, id: RequestId): void {
    queueMicrotask(() => {
      this.#handOffs.step(id, { kind: 'cancelled' });
      this.onOutputs(instance, { ...nothing, released: [[id, 'its engine is down']] });
    });
  }

  /** With the hand-offs under way. */
  override get inFlight(): ConductorDriver['inFlight'] & { readonly handOffs: number } {
    return { ...super.inFlight, handOffs: this.#handOffs.size };
  }

  protected cancelAt(instance: InstanceIndex, id: RequestId): void {
    this.#handOffs.step(id, { kind: 'cancelled' });
    this.#slots[instance]?.instance?.cancel(id);
  }

  #callsOfHandOffs(): HandOffCalls<unknown> {
    return {
      query: ({ from, request }) => void this.#query(this.#slots[from], request.id),
      prefill: ({ from, to, request, rendezvous }) => {
        const slot = this.#slots[from];
        const done = (answer: EngineAnswer | undefined): void => void this.#onPrefillEnd(slot, request.id, answer);
        if (slot.instance === undefined) this.#releaseLater(to, request.id);
        else slot.instance.prefill(request, this.cachedTokensAt(from, request), slot.handOff.prefill(rendezvous), done);
      },
      decode: ({ from, to, request, rendezvous }, { alone, params }) => {
        const { instance } = this.#slots[to];
        const fields = alone ? undefined : this.#slots[from].handOff.decode(rendezvous, params);
        if (instance === undefined) this.#releaseLater(to, request.id);
        else instance.submit(request, this.cachedTokensAt(to, request), fields);
      },
      end: (instance, id) => this.#slots[instance].instance?.cancel(id),
      prefilled: ({ from, request }) => this.onOutputs(from, { ...nothing, prefilled: [request.id] }),
      released: (instance, id, why, refusal) => this.feed({ kind: 'released', instance, id, why, refusal }),
    };
  }

  async #query(slot: Slot, id: RequestId): Promise<void> {
    let params: unknown;
    let failure: string | undefined;
    try {
      params = await slot.handOff.query?.(slot.rank);
    } catch (error) {
      failure = reasonOf(error);
      if (failure !== slot.queryFailure)
        this.log(
          `Prompts of ${slot.name} are prefilled by their decode engines: its bootstrap server fails: ${failure}`,
        );
    }
    slot.queryFailure = failure;
    this.#handOffs.step(id, { kind: 'queried', params });
  }

  /** A prefill engine that is gone fails as an instance: its requests are retried. */
  async #onPrefillEnd({ engine, handOff }: Slot, id: RequestId, answer: EngineAnswer | undefined): Promise<void> {
    const end = await prefillEnd(engine, handOff, answer);
    if (end.kind === 'prefilled') this.#handOffs.step(id, { kind: 'prefilled', params: end.params });
    else if (end.kind === 'engineFailed') engine.fail(end.why);
    else this.#handOffs.step(id, { kind: 'prefillFailed', why: end.why }, end.refusal);
  }

  protected requestSnapshotFrom(instance: InstanceIndex): void {
    const kvSnapshot = this.#slots[instance]?.instance?.kvSnapshot();
    if (kvSnapshot !== undefined) queueMicrotask(() => this.onOutputs(instance, { ...nothing, kvSnapshot }));
  }

  protected pinAt(instance: InstanceIndex, { id }: PinOrder): void {
    const message = 'Cannot pin a prefix: external engines evict by their own order';
    const pins = [[id, { kind: 'refused', why: 'failed', message }]] as const;
    queueMicrotask(() => this.onOutputs(instance, { ...nothing, pins }));
  }

  protected unpinAt(_instance: InstanceIndex, _id: PinId): void {}
}

function isServing({ instance, engine }: Slot): boolean {
  return instance !== undefined && !engine.isDraining;
}

/** A request that exceeds the memory or the context of an engine goes to another one. */
function capacityOf({ capacityTokens, contextTokens }: EngineDescription): number {
  return Math.min(capacityTokens ?? Number.POSITIVE_INFINITY, contextTokens ?? Number.POSITIVE_INFINITY);
}
