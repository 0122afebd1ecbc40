// An inference port over instances on worker threads: the conductor runs on this thread, each instance on its own.
import { webcrypto } from 'node:crypto';
import type { PublishedBlocks } from '../../core/fleet/published-blocks.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, InstanceSnapshot, PinOrder } from '../../core/protocol/ports.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import { LearnedTransfers } from '../../core/router/placement/learned-transfers.ts';
import type { PipelineSettings, PlacerConfig } from '../../core/router/placement/placer.ts';
import { type TokenPipeline, TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { tokenRequests } from '../../core/router/token-requests.ts';
import { batchLimits, batchLimitsWith } from '../../core/scheduler/executor/token-limits.ts';
import type { MemoryBus } from '../bus/memory-bus.ts';
import { MemoryHub } from '../bus/memory-hub.ts';
import { LendingManagerHost, type LendingManagerSettings } from '../lending/lending-manager-host.ts';
import { Backoff } from '../processes/backoff.ts';
import {
  canServe,
  emptySnapshot,
  snapshotAfterLoss,
  storeRoleIsFixed,
  withEarlier,
} from '../snapshots/metric-snapshots.ts';
import type { Transport } from '../transfer/messenger.ts';
import { ConductorDriver, type ForwardTargets } from './conductor-driver.ts';
import { InstanceThread } from './instance-thread.ts';
import type { InstanceDescription, InstanceThreadData, OutputsMessage, ReadyMessage } from './thread-protocol.ts';

export interface LiveClusterOptions {
  /** Module of the threads, which creates an instance and starts an InstanceLoop. */
  readonly entry: URL;
  /** (instances), at least one: its role, and the settings for the module. */
  readonly instances: readonly {
    readonly role: InstanceRole;
    readonly settings: unknown;
    /** The role never changes: no prompt can be sent from attention workers. */
    readonly keepsRole?: boolean;
  }[];
  /** Latency targets and the admission policy. */
  readonly admission: AdmissionSettings;
  /** Maximum predicted time of a step that decodes and prefills; undefined: the default. */
  readonly stepUs?: number | undefined;
  /** How keys and values move between instances: copied in memory if possible, unless given. */
  readonly transport?: Transport;
  /** Four words that key block identities; random unless given, since no block outlives the process. */
  readonly hashKey?: Uint32Array | undefined;
  /** Record steps in the traces of requests; off unless given. */
  readonly traces?: boolean;
  /** Largest number of requests in the gateway at once. */
  readonly queueMax: number;
  /** Placement policy; cache-aware unless given. */
  readonly placement?: PlacerConfig<GenerationRequest>['kind'] | undefined;
  /** Hot prefixes are also copied before a prompt fetches them. */
  readonly copiesHotPrefixes?: boolean | undefined;
  /** Groups of prefill instances may compute long prompts; undefined: each prompt is computed by one instance. */
  readonly pipeline?: PipelineSettings | undefined;
  /** Instances lend memory to one another; undefined: none is lent. */
  readonly lending?: Omit<LendingManagerSettings, 'instances'> | undefined;
  /** Limit of a request's duration; none unless given. */
  readonly requestTimeoutUs?: number | undefined;
  /** @see InstanceThreadOptions.watchdogUs */
  readonly watchdogUs?: number | undefined;
  /** Receives the blocks of the instances, to publish them; none unless given. */
  readonly kvEvents?: PublishedBlocks | undefined;
  /** Restart an instance when its thread ends. */
  readonly restarts?: boolean;
  /** Threads keep the process alive until they end; true unless given. */
  readonly holdsProcess?: boolean | undefined;
  log(message: string): void;
}

/** A lost request is retried once: it may itself have caused the loss. */
const attemptsMax = 2;

interface Member {
  readonly thread: InstanceThread;
  readonly incarnation: number;
  readonly startedMs: number;
  /** Its weights, once it serves. */
  loaded: InstanceThreadData<unknown>['loaded'];
  /** With the counters of `earlier`. */
  snapshot: InstanceSnapshot;
  /** Counters of earlier starts of the instance. */
  readonly earlier: InstanceSnapshot | undefined;
}

/** The first instance loads the model; the others then start over the same weights, if threads can share them. */
export class LiveCluster extends ConductorDriver {
  readonly #options: LiveClusterOptions;
  readonly #hashKey: Uint32Array;
  readonly #pages: InstanceThreadData<unknown>['pages'];
  /** The bus between the threads, and the endpoint of this one. */
  readonly #hub = new MemoryHub();
  readonly #bus: MemoryBus;
  readonly #members: Member[] = [];
  /** (instances) */
  readonly #backoffs: readonly Backoff[];
  readonly #timers = new Set<NodeJS.Timeout>();
  /** Instances that do not serve. */
  readonly #lost = new Set<InstanceIndex>();
  /** Of these, those with a thread that hangs. */
  readonly #hung = new Set<InstanceIndex>();
  readonly #ready: Promise<readonly InstanceDescription[]>;
  readonly #ended: Promise<void>;
  #transfers: LearnedTransfers | undefined;
  /** (instances) */
  readonly #roles: InstanceRole[];
  /** Prompts may be prefilled and decoded by different instances, now or after a role switch. */
  readonly #transfersPrompts: boolean;
  readonly #lendingManager: LendingManagerHost | undefined;
  #onEnded: () => void = () => {};
  #closing = false;

  constructor(options: LiveClusterOptions) {
    const hashKey = options.hashKey ?? webcrypto.getRandomValues(new Uint32Array(4));
    super({
      placement: new TokenPlacement(hashKey, options.kvEvents),
      admission: new TokenAdmission(options.admission, options.instances.length, batchLimitsWith(options.stepUs)),
      log: (line) => options.log(line),
    });
    this.#options = options;
    this.#hashKey = hashKey;
    // The token never leaves this process.
    const { transport = 'auto' } = options;
    const copies = transport === 'memory' || transport === 'auto';
    this.#pages = copies ? undefined : { host: '127.0.0.1', token: webcrypto.randomUUID(), transport };
    this.#roles = options.instances.map(({ role }) => role);
    this.#transfersPrompts = options.admission.roleSwitch !== undefined || this.#roles.includes('decode');
    this.#bus = this.#hub.connect();
    this.#backoffs = options.instances.map(() => new Backoff());
    const { lending, instances } = options;
    this.#lendingManager = lending && new LendingManagerHost({ ...lending, instances: instances.length }, this.#bus);
    this.#ended = new Promise((resolve) => {
      this.#onEnded = resolve;
    });
    this.#ready = this.#start();
    // Callers of `ready` receive the failure.
    this.#ready.catch(() => {});
  }

  /** Resolves once all instances serve. @throws Error in one line if one cannot */
  ready(): Promise<readonly InstanceDescription[]> {
    return this.#ready;
  }

  /** Resolves when the remaining instances can serve no request. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined {
    if (this.#roles[instance] === role) return undefined;
    if (this.#roles[instance] === 'store') return storeRoleIsFixed;
    if (this.#options.instances[instance]?.keepsRole === true)
      return 'an instance with attention workers keeps its role';
    if (!this.#transfersPrompts)
      return 'this server does not disaggregate prefill: start it with prefill and decode instances, or with --role-switch';
    this.feed({ kind: 'switchRole', instance, role });
    return this.#roles[instance] === role ? undefined : 'no instance would be left to prefill, or none to decode';
  }

  roles(): readonly InstanceRole[] {
    return this.#roles;
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#options.instances.map((_, i) => this.#members[i]?.snapshot ?? emptySnapshot);
  }

  /** Ends all threads; running requests fail. */
  async close(): Promise<void> {
    this.#closing = true;
    for (const timer of this.#timers) clearTimeout(timer);
    this.stopTimers();
    await Promise.all(this.#members.map(({ thread }) => thread.close()));
    this.#lendingManager?.close();
    await this.#bus.close();
  }

  protected notReadyReason(): ReturnType<ConductorDriver['notReadyReason']> {
    if (!this.isStarted) return { kind: 'starting', message: 'the model is still loading' };
    if (this.#serves()) return undefined;
    const computing = [...this.#roles.keys()].filter((i) => this.#roles[i] !== 'store');
    const gone = computing.filter((i) => this.#lost.has(i)).length;
    const remedy = this.hasHungThreads ? '; threads that hang cannot be ended: restart the server' : '';
    return { kind: 'incomplete', message: `${gone} of ${computing.length} instances have failed${remedy}` };
  }

  protected onRoleSwitched(instance: InstanceIndex, role: InstanceRole): void {
    this.#roles[instance] = role;
  }

  async #start(): Promise<readonly InstanceDescription[]> {
    const { instances } = this.#options;
    // A decode instance with attention workers packs some layers in a form of its own, and shares none.
    const prefill = this.#roles.indexOf('prefill');
    const loader = prefill >= 0 ? prefill : this.#roles.findIndex((role) => role !== 'store');
    const first = await this.#startInstance(loader, undefined);
    const loaded = first.shared && { model: first.shared, root: first.root };
    const messages = await Promise.all(
      instances.map((_, i) => (i === loader ? first : this.#startInstance(i, loaded))),
    );
    this.placement.begin(
      first.root,
      messages.map(({ description }) => description.threads),
      this.#transfersBetween(first, messages),
      this.#pipelineOf(first),
    );
    for (const [i, { description }] of messages.entries())
      this.admission.instanceJoined(i, description.capacityTokens, description.contextTokens);
    const { placement: kind = 'cache-aware', copiesHotPrefixes } = this.#options;
    const conductor = new Conductor<GenerationRequest>({
      instances: messages.map(({ description: { capacityTokens } }, i) => ({ capacityTokens, role: this.#roles[i] })),
      queueMax: this.#options.queueMax,
      roleSwitch: this.#options.admission.roleSwitch,
      requests: tokenRequests,
      retries: { attemptsMax, requestTimeoutUs: this.#options.requestTimeoutUs },
      placement: { ...this.placement.config, kind, copiesHotPrefixes },
      admission: this.admission.config(this.placement.prefills, this.#transfers?.config),
      batchJobs: { memoryShare: batchLimits.background.memoryShare },
      recordsPlacements: true,
    });
    this.startConductor(conductor);
    for (const [i, message] of messages.entries()) this.#configure(i, message);
    this.#lendingManager?.begin(messages.map(({ description }) => description));
    for (const [i, { snapshot }] of messages.entries()) if (!this.#lost.has(i)) this.#member(i).snapshot = snapshot;
    return messages.map(({ description }) => description);
  }

  #configure(index: InstanceIndex, { description, shared }: ReadyMessage): void {
    const { thread } = this.#member(index);
    // KV events do not include the blocks that were on SSD at the start.
    if ((description.tiers?.found ?? 0) > 0) thread.send({ kind: 'requestSnapshot' });
    const stores = this.#roles.flatMap((role, i) => (role === 'store' ? [{ instance: i, key: i }] : []));
    if (stores.length > 0 && shared !== undefined) thread.send({ kind: 'stores', stores });
  }

  /** Undefined if prefixes are not fetched. */
  #transfersBetween(
    { description: { fetchBytesPerToken: bytesPerToken }, shared }: ReadyMessage,
    messages: readonly ReadyMessage[],
  ): LearnedTransfers | undefined {
    // Pages at attention workers are not fetched.
    const canAll = messages.every(
      ({ description }, i) => this.#roles[i] === 'store' || description.fetchBytesPerToken !== undefined,
    );
    if (shared === undefined || bytesPerToken === undefined || !canAll || messages.length === 1) return undefined;
    this.#transfers = new LearnedTransfers(messages.length, bytesPerToken);
    return this.#transfers;
  }

  #pipelineOf({ description: { stageLayers }, shared }: ReadyMessage): TokenPipeline | undefined {
    const { pipeline } = this.#options;
    if (pipeline === undefined) return undefined;
    if (shared === undefined) throw new Error('Cannot compute prompts in groups: it needs the native kernels');
    if (stageLayers === undefined || stageLayers < pipeline.members) {
      const why =
        stageLayers === undefined ? 'some layers of the model have a sliding window' : `it has ${stageLayers} layers`;
      throw new Error(`Cannot compute prompts in groups of ${pipeline.members}: ${why}`);
    }
    return { ...pipeline, layers: stageLayers };
  }

  #startInstance(index: InstanceIndex, loaded: InstanceThreadData<unknown>['loaded']): Promise<ReadyMessage> {
    if (this.#closing) throw new Error('Cannot start the instance: the server is closing');
    const { entry, instances, log, watchdogUs, holdsProcess } = this.#options;
    const incarnation = (this.#members[index]?.incarnation ?? 0) + 1;
    const data = {
      settings: instances[index].settings,
      address: String(index),
      role: this.#roles[index],
      incarnation,
      receivesPrompts: this.#transfersPrompts,
      peers: instances.length === 1 ? ('none' as const) : ('threads' as const),
      lender: this.#lendingManager && index,
      pages: this.#pages,
      traces: this.#options.traces ?? false,
      hashKey: this.#hashKey,
      loaded,
    };
    const onOutputs = (message: OutputsMessage): void => this.#onOutputs(index, message);
    const bus = { hub: this.#hub, bus: this.#bus };
    const onOverdue = (isOverdue: boolean): void => this.overdue(index, index, isOverdue);
    const options = { entry, ...bus, data, log, onOutputs, onOverdue, watchdogUs, holdsProcess };
    const thread = new InstanceThread(options);
    const snapshot = this.#members[index]?.snapshot ?? emptySnapshot;
    const earlier = this.#members[index]?.snapshot;
    const member: Member = { thread, incarnation, startedMs: performance.now(), loaded: undefined, snapshot, earlier };
    this.#members[index] = member;
    void thread.hung.then(() => this.#onHung(index));
    void thread.ended.then(() => this.#onEnd(index));
    return thread.ready.then((message) => {
      member.loaded = message.shared && { model: message.shared, root: message.root };
      return message;
    });
  }

  #scheduleRestart(index: InstanceIndex): void {
    const delayMs = this.#backoffs[index].next(performance.now() - this.#member(index).startedMs);
    this.log(`Instance ${index} has failed: restarting it in ${delayMs / 1000} s`);
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      this.#restart(index).catch((error: Error) => this.log(error.message));
    }, delayMs);
    this.#timers.add(timer);
  }

  /** Loads the model again if no remaining thread has the weights. */
  async #restart(index: InstanceIndex): Promise<void> {
    // Replies to the previous incarnation must arrive before the new one starts.
    await this.#bus.flush();
    if (this.#closing) return;
    const source = this.#members.find(({ loaded }, i) => !this.#lost.has(i) && loaded !== undefined);
    const message = await this.#startInstance(index, source?.loaded);
    const { capacityTokens, contextTokens } = message.description;
    const member = this.#member(index);
    member.snapshot = withEarlier(member.earlier, message.snapshot);
    this.#lost.delete(index);
    this.admission.instanceJoined(index, capacityTokens, contextTokens);
    this.feed({ kind: 'instanceJoined', instance: index, incarnation: member.incarnation, capacityTokens });
    this.#configure(index, message);
    this.#lendingManager?.onReturned(index);
    this.log(`Instance ${index} serves again`);
  }

  #onOutputs(instance: InstanceIndex, message: OutputsMessage): void {
    const { snapshot } = message;
    if (snapshot !== undefined) {
      const member = this.#member(instance);
      this.servedAttention(instance, member.snapshot, snapshot);
      member.snapshot = withEarlier(member.earlier, snapshot);
      this.admission.observe(instance, snapshot);
      this.placement.observe(instance, snapshot);
    }
    this.recordSteps(instance, message.steps);
    if (snapshot !== undefined) this.#transfers?.observe(instance, snapshot);
    this.onOutputs(instance, message);
  }

  protected forwardTo(
    instance: InstanceIndex,
    request: GenerationRequest,
    { decodeAt, prefix, offer, group }: ForwardTargets,
  ): void {
    this.#member(instance).thread.send({ kind: 'submit', request, decodeAt, prefix, offer, group });
  }

  protected cancelAt(instance: InstanceIndex, id: RequestId, interrupt: boolean): void {
    const { thread } = this.#member(instance);
    thread.send({ kind: 'cancel', id });
    if (interrupt) thread.interrupt();
  }

  protected requestSnapshotFrom(instance: InstanceIndex): void {
    this.#member(instance).thread.send({ kind: 'requestSnapshot' });
  }

  protected pinAt(instance: InstanceIndex, { id, request, ttlUs }: PinOrder): void {
    this.#member(instance).thread.send({ kind: 'pin', id, request, ttlUs });
  }

  protected unpinAt(instance: InstanceIndex, id: PinId): void {
    this.#member(instance).thread.send({ kind: 'unpin', id });
  }

  /** True while a thread of this process hangs, which then cannot exit by itself. */
  get hasHungThreads(): boolean {
    return this.#hung.size > 0;
  }

  #onLost(instance: InstanceIndex, why?: string): void {
    this.#lost.add(instance);
    for (const other of this.#members) other?.thread.interruptWaits();
    const member = this.#member(instance);
    member.snapshot = snapshotAfterLoss(member.snapshot);
    this.#lendingManager?.onLost(instance, this.#restarts);
    this.feed({ kind: 'instanceFailed', instance, ...(why !== undefined && { why }) });
  }

  get #restarts(): boolean {
    return this.#options.restarts === true && this.isStarted && !this.#closing;
  }

  /** Its memory belongs to the thread until it ends, so no other instance starts in its place. */
  #onHung(instance: InstanceIndex): void {
    this.#hung.add(instance);
    this.#onLost(instance, 'the compute thread of the instance hangs');
    this.log(`Instance ${instance} has failed${this.#restarts ? ': it restarts if its thread ends' : ''}`);
  }

  #onEnd(instance: InstanceIndex): void {
    if (!this.#hung.delete(instance)) this.#onLost(instance);
    if (this.#restarts) this.#scheduleRestart(instance);
    else if (!this.#serves() || !this.isStarted) this.#onEnded();
    else if (!this.#closing) this.log(`Instance ${instance} has failed: the others continue`);
  }

  #serves(): boolean {
    return canServe(this.#roles.filter((_, i) => !this.#lost.has(i)));
  }

  #member(instance: InstanceIndex): Member {
    const member = this.#members[instance];
    if (member === undefined) throw new Error(`Invariant violated: instance ${instance} has not been started`);
    return member;
  }
}
