// An inference port over external engines: the conductor runs on this thread, and each rank of an engine is an instance.
import { webcrypto } from 'node:crypto';
import type { BlockRoot } from '../../core/kvcache/block-hash.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, InstanceSnapshot, PinOrder } from '../../core/protocol/ports.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import type { PlacerConfig } from '../../core/router/placement/placer.ts';
import { TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { tokenRequests } from '../../core/router/token-requests.ts';
import { batchLimits, batchLimitsWith } from '../../core/scheduler/executor/token-limits.ts';
import { emptySnapshot, snapshotAfterLoss, withEarlier } from '../snapshots/metric-snapshots.ts';
import { nowUs } from '../threads/alarm.ts';
import { ConductorDriver } from '../threads/conductor-driver.ts';
import type { OutputsMessage } from '../threads/thread-protocol.ts';
import type { EngineDescription, EngineDialect, EngineLoad } from './engine-dialect.ts';
import { ExternalEngine, type ExternalEngineListener, type ExternalEngineOptions } from './external-engine.ts';
import { ExternalInstance } from './external-instance.ts';

export interface FleetClusterOptions {
  readonly engines: readonly ExternalEngineOptions[];
  /** The model's name at the engines; undefined: the first one of the first engine. */
  readonly model?: string | undefined;
  readonly admission: AdmissionSettings;
  readonly stepUs?: number | undefined;
  /** Largest number of requests in the gateway at once. */
  readonly queueMax: number;
  /** Placement policy; cache-aware unless given. */
  readonly placement?: PlacerConfig<GenerationRequest>['kind'] | undefined;
  /** Limit of a request's duration; none unless given. */
  readonly requestTimeoutUs?: number | undefined;
  log(message: string): void;
}

/** Ranks of all engines together. */
const slotsMax = 256;
const attemptsMax = 4;
/** An engine with streams of which none advances for so long is down, whatever it answers. */
const stallUsMax = 120_000_000;

/** Prompts of one model only reach a fleet: nothing else distinguishes its blocks. */
const root: BlockRoot = { modelFingerprint: 'fleet', weightForm: '', inputForm: '', kvType: '', rope: '' };

type Outputs = Omit<OutputsMessage, 'kind' | 'snapshot' | 'steps'>;
const nothing: Outputs = { events: [], prefilled: [], released: [], pins: [], kvEvents: [], kvSnapshot: undefined };

interface Slot {
  readonly engine: ExternalEngine;
  readonly rank: number;
  readonly name: string;
  incarnation: number;
  instance: ExternalInstance | undefined;
  /** Counters of earlier incarnations. */
  earlier: InstanceSnapshot | undefined;
  snapshot: InstanceSnapshot;
}

export class FleetCluster extends ConductorDriver {
  readonly #hashKey: Uint32Array;
  readonly #slots: Slot[] = [];
  readonly #engines: readonly ExternalEngine[];
  #model: string | undefined;
  #contextTokens: number | undefined;

  constructor(options: FleetClusterOptions) {
    const hashKey = webcrypto.getRandomValues(new Uint32Array(4));
    super({
      placement: new TokenPlacement(hashKey),
      admission: new TokenAdmission(options.admission, slotsMax, batchLimitsWith(options.stepUs)),
      log: (line) => options.log(line),
    });
    this.#hashKey = hashKey;
    this.#model = options.model;
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
    const listener: ExternalEngineListener = {
      onUp: (engine, dialect, description) => this.#onUp(engine, dialect, description),
      onDown: (engine, why) => this.#onDown(engine, why),
      onLoads: (engine, loads) => this.#onLoads(engine, loads),
      log: (message) => this.log(message),
    };
    this.#engines = options.engines.map((engine) => new ExternalEngine(engine, listener));
  }

  /** Resolves when each engine has answered, or failed to, once. */
  async settled(): Promise<void> {
    await Promise.all(this.#engines.map(({ settled }) => settled));
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
    return this.#slots.filter(({ instance }) => instance !== undefined).length;
  }

  #onUp(engine: ExternalEngine, dialect: EngineDialect, description: EngineDescription): void {
    const { models, contextTokens, sources } = description;
    const model = this.#model ?? models[0];
    if (!models.includes(model)) throw new Error(`it serves ${models.join(', ')}, and the fleet serves ${model}`);
    if (this.#slots.length + sources.length > slotsMax) throw new Error(`the fleet has at most ${slotsMax} ranks`);
    this.#model = model;
    this.#contextTokens = Math.max(this.#contextTokens ?? 0, contextTokens ?? 0) || undefined;
    for (const rank of sources.keys()) this.#join(engine, dialect, description, rank);
    const events = sources.some((source) => source !== undefined) ? 'with KV events' : 'without KV events';
    this.log(`Engine ${engine.url} (${dialect.kind}, ${events}) has joined: ${this.serving} serve`);
  }

  #join(engine: ExternalEngine, dialect: EngineDialect, description: EngineDescription, rank: number): void {
    const instance = this.#slotOf(engine, rank, description.sources.length);
    const slot = this.#slots[instance];
    slot.incarnation++;
    slot.earlier = slot.snapshot;
    const { incarnation } = slot;
    const capacityTokens = capacityOf(description);
    const output = (outputs: Partial<Outputs>): void => {
      if (slot.incarnation === incarnation) this.onOutputs(instance, { ...nothing, ...outputs });
    };
    this.admission.instanceJoined(instance, capacityTokens, capacityTokens);
    this.feed({ kind: 'instanceJoined', instance, incarnation, capacityTokens, role: 'mixed', keepsRole: true });
    slot.instance = new ExternalInstance({
      ...{ http: engine.http, dialect, description, model: this.#model ?? '', rank },
      blocks: { root, hashKey: this.#hashKey, incarnation },
      listener: {
        onEvents: (events) => output({ events }),
        onKvEvents: (batch) => output({ kvEvents: [batch] }),
        onBroken: (id, why) => void this.#onBroken(slot, instance, id, why),
        onReleased: (id, why) => output({ released: [[id, why]] }),
        log: (message) => this.log(message),
      },
    });
    // The index takes batches only behind a snapshot.
    output({ kvSnapshot: slot.instance.kvSnapshot() });
  }

  #slotOf(engine: ExternalEngine, rank: number, ranks: number): InstanceIndex {
    const known = this.#slots.findIndex((slot) => slot.engine === engine && slot.rank === rank);
    if (known >= 0) return known;
    const name = ranks === 1 ? engine.url : `${engine.url}#${rank}`;
    const state = { incarnation: 0, instance: undefined, earlier: undefined, snapshot: emptySnapshot };
    return this.#slots.push({ engine, rank, name, ...state }) - 1;
  }

  /** The requests of a dead engine continue elsewhere at once; with a live one only this stream broke. */
  async #onBroken(slot: Slot, instance: InstanceIndex, id: RequestId, why: string): Promise<void> {
    const { incarnation, engine } = slot;
    const unhealthy = await engine.unhealthy();
    if (slot.incarnation !== incarnation || slot.instance === undefined) return;
    if (unhealthy !== undefined) engine.fail(unhealthy);
    else this.onOutputs(instance, { ...nothing, released: [[id, `its stream broke: ${why}`]] });
  }

  #onDown(engine: ExternalEngine, why: string): void {
    for (const [instance, slot] of this.#slots.entries()) {
      if (slot.engine !== engine || slot.instance === undefined) continue;
      slot.snapshot = snapshotAfterLoss(this.#snapshotOf(slot));
      slot.instance.close();
      slot.instance = undefined;
      this.feed({ kind: 'instanceFailed', instance, why: `the engine failed: ${why}` });
    }
    this.log(`Engine ${engine.url} is down: ${why}: ${this.serving} serve`);
  }

  #onLoads(engine: ExternalEngine, loads: readonly EngineLoad[]): void {
    for (const [instance, slot] of this.#slots.entries()) {
      if (slot.engine !== engine || slot.instance === undefined) continue;
      slot.instance.observe(loads[slot.rank]);
      slot.snapshot = this.#snapshotOf(slot);
      this.admission.observe(instance, slot.snapshot);
      const { stalledSinceUs } = slot.instance;
      if (stalledSinceUs !== undefined && nowUs() - stalledSinceUs > stallUsMax) {
        engine.fail(`no stream has advanced for ${stallUsMax / 1e6} s`);
        return;
      }
    }
  }

  #snapshotOf({ instance, earlier, snapshot, name }: Slot): InstanceSnapshot {
    return instance === undefined ? { ...snapshot, name } : { ...withEarlier(earlier, instance.snapshot()), name };
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#slots.map((slot) => this.#snapshotOf(slot));
  }

  roles(): readonly InstanceRole[] {
    return this.#slots.map(() => 'mixed');
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
    if (this.serving > 0) return undefined;
    return { kind: 'incomplete', message: `none of ${this.#engines.length} engines serves` };
  }

  protected onRoleSwitched(): void {}

  protected forwardTo(instance: InstanceIndex, request: GenerationRequest): void {
    this.#slots[instance]?.instance?.submit(request, this.cachedTokensAt(instance, request));
  }

  protected cancelAt(instance: InstanceIndex, id: RequestId): void {
    this.#slots[instance]?.instance?.cancel(id);
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

/** A request that exceeds the memory or the context of an engine goes to another one. */
function capacityOf({ capacityTokens, contextTokens }: EngineDescription): number {
  return Math.min(capacityTokens ?? Number.POSITIVE_INFINITY, contextTokens ?? Number.POSITIVE_INFINITY);
}
