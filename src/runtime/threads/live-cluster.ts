// An inference port over instances on worker threads: the conductor decides at once on this thread, each instance computes on its own.
import { webcrypto } from 'node:crypto';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import { LearnedTransfers } from '../../core/router/placement/learned-transfers.ts';
import type { PipelineSettings, PlacerConfig } from '../../core/router/placement/placer.ts';
import { type TokenPipeline, TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { tokenRequests } from '../../core/router/token-requests.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';
import type { MemoryBus } from '../bus/memory-bus.ts';
import { MemoryHub } from '../bus/memory-hub.ts';
import { LendingManagerHost, type LendingManagerSettings } from '../lending/lending-manager-host.ts';
import { Backoff } from '../processes/backoff.ts';
import { canServe, emptySnapshot, snapshotAfterLoss, storeRoleIsFixed } from '../snapshots/metric-snapshots.ts';
import type { Transport } from '../transfer/messenger.ts';
import { ConductorDriver, type Reach } from './conductor-driver.ts';
import { InstanceThread } from './instance-thread.ts';
import type { InstanceDescription, InstanceThreadData, OutputsMessage, ReadyMessage } from './thread-protocol.ts';

export interface LiveClusterOptions {
  /** Module that the threads run: it makes an instance and starts an InstanceLoop. */
  readonly entry: URL;
  /** (instances), one at least: what each is for, and settings for the module. */
  readonly instances: readonly { readonly role: InstanceRole; readonly settings: unknown }[];
  /** What requests may wait, and who is taken. */
  readonly admission: AdmissionSettings;
  /** How keys and values go from one to another: copied unless as between processes or hosts. */
  readonly transport?: Transport;
  /** Four words that key the identities of blocks; undefined: drawn, since none outlives the process. */
  readonly hashKey?: Uint32Array | undefined;
  /** Steps are recorded in accounts of requests; they are not unless asked for. */
  readonly traces?: boolean;
  /** Requests accepted at once. */
  readonly queueMax: number;
  /** Where requests go; by what instances hold and have to do unless given. */
  readonly placement?: PlacerConfig<GenerationRequest>['kind'] | undefined;
  /** Long prompts may be computed by groups of instances that prefill; undefined: each by one. */
  readonly pipeline?: PipelineSettings | undefined;
  /** Instances lend one another memory; undefined: each has its own alone. */
  readonly lending?: Omit<LendingManagerSettings, 'instances'> | undefined;
  /** Are those started anew whose thread ends? */
  readonly restarts?: boolean;
  readonly log: (message: string) => void;
}

/** What is lost with an instance is tried on another one, once: a request may be what it died of. */
const triesMax = 2;

interface Member {
  readonly thread: InstanceThread;
  readonly incarnation: number;
  readonly startedMs: number;
  /** Weights that it has, once it serves. */
  loaded: InstanceThreadData<unknown>['loaded'];
  snapshot: InstanceSnapshot;
}

/** The first instance loads the model; the others start when it has, over the same weights where threads can share them. */
export class LiveCluster extends ConductorDriver {
  readonly #options: LiveClusterOptions;
  readonly #hashKey: Uint32Array;
  readonly #pages: InstanceThreadData<unknown>['pages'];
  /** Over which threads hear one another, and this one's end of it. */
  readonly #hub = new MemoryHub();
  readonly #bus: MemoryBus;
  readonly #members: Member[] = [];
  /** (instances) */
  readonly #backoffs: readonly Backoff[];
  readonly #timers = new Set<NodeJS.Timeout>();
  /** Those that do not serve. */
  readonly #lost = new Set<InstanceIndex>();
  readonly #ready: Promise<readonly InstanceDescription[]>;
  readonly #ended: Promise<void>;
  #transfers: LearnedTransfers | undefined;
  /** (instances) */
  readonly #roles: InstanceRole[];
  /** Do prompts go on at other instances than those that compute them, now or once roles have changed? */
  readonly #transfersPrompts: boolean;
  readonly #lendingManager: LendingManagerHost | undefined;
  #onEnded: () => void = () => {};
  protected readonly reach = this.#reach();
  #closing = false;

  constructor(options: LiveClusterOptions) {
    const hashKey = options.hashKey ?? webcrypto.getRandomValues(new Uint32Array(4));
    super({
      placement: new TokenPlacement(hashKey),
      admission: new TokenAdmission(options.admission, options.instances.length, batchLimits),
      log: options.log,
    });
    this.#options = options;
    this.#hashKey = hashKey;
    // Nobody outside this process has the token.
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
    // Whoever calls `ready` sees the failure; nobody else has to.
    this.#ready.catch(() => {});
  }

  /** Resolves once all instances serve. @throws Error saying in one line why one cannot */
  ready(): Promise<readonly InstanceDescription[]> {
    return this.#ready;
  }

  /** Resolves when what is left can serve no request. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined {
    if (this.#roles[instance] === role) return undefined;
    if (this.#roles[instance] === 'store') return storeRoleIsFixed;
    if (!this.#transfersPrompts)
      return 'instances of this server hand no prompts over: start it with some that prefill and some that decode, or with --role-switch';
    this.feed({ kind: 'switchRole', instance, role });
    return this.#roles[instance] === role ? undefined : 'nobody would be left to prefill, or nobody to decode';
  }

  roles(): readonly InstanceRole[] {
    return this.#roles;
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#options.instances.map((_, i) => this.#members[i]?.snapshot ?? emptySnapshot);
  }

  /** Ends all threads; requests under way fail. */
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
    return { kind: 'incomplete', message: `${gone} of ${computing.length} instances are gone` };
  }

  protected onRoleSwitched(instance: InstanceIndex, role: InstanceRole): void {
    this.#roles[instance] = role;
  }

  async #start(): Promise<readonly InstanceDescription[]> {
    const { instances } = this.#options;
    const lead = this.#roles.findIndex((role) => role !== 'store');
    const first = await this.#startInstance(lead, undefined);
    const loaded = first.shared && { model: first.shared, root: first.root };
    const messages = await Promise.all(instances.map((_, i) => (i === lead ? first : this.#startInstance(i, loaded))));
    this.placement.begin(
      first.root,
      messages.map(({ description }) => description.threads),
      this.#transfersBetween(first, messages.length),
      this.#pipelineOf(first),
    );
    for (const [i, { description }] of messages.entries())
      this.admission.instanceJoined(i, description.capacityTokens, description.contextTokens);
    const conductor = new Conductor<GenerationRequest>({
      instances: messages.map(({ description: { capacityTokens } }, i) => ({ capacityTokens, role: this.#roles[i] })),
      queueMax: this.#options.queueMax,
      roleSwitch: this.#options.admission.roleSwitch,
      requests: tokenRequests,
      retries: { attemptsMax: triesMax },
      placement: { ...this.placement.config, kind: this.#options.placement ?? 'cache-aware' },
      admission: this.admission.config(this.placement.prefills),
      batchJobs: { memoryShare: batchLimits.background.memoryShare },
      recordsPlacements: true,
    });
    this.startConductor(conductor);
    for (const [i, message] of messages.entries()) this.#introduce(i, message);
    this.#lendingManager?.begin(messages.map(({ description }) => description));
    for (const [i, { snapshot }] of messages.entries()) if (!this.#lost.has(i)) this.#member(i).snapshot = snapshot;
    return messages.map(({ description }) => description);
  }

  #introduce(index: InstanceIndex, { description, shared }: ReadyMessage): void {
    const { thread } = this.#member(index);
    // What it had on SSD, nobody has heard of yet.
    if ((description.tiers?.found ?? 0) > 0) thread.send({ kind: 'requestSnapshot' });
    const stores = this.#roles.flatMap((role, i) => (role === 'store' ? [{ instance: i, key: i }] : []));
    if (stores.length > 0 && shared !== undefined) thread.send({ kind: 'stores', stores });
  }

  /** Undefined where prefixes stay where they are. */
  #transfersBetween({ description, shared }: ReadyMessage, instances: number): LearnedTransfers | undefined {
    const bytesPerToken = description.fetchBytesPerToken;
    if (shared === undefined || bytesPerToken === undefined || instances === 1) return undefined;
    this.#transfers = new LearnedTransfers(instances, bytesPerToken);
    return this.#transfers;
  }

  #pipelineOf({ description: { stageLayers }, shared }: ReadyMessage): TokenPipeline | undefined {
    const { pipeline } = this.#options;
    if (pipeline === undefined) return undefined;
    if (shared === undefined) throw new Error('Cannot compute prompts in groups: it needs the native kernels');
    if (stageLayers === undefined || stageLayers < pipeline.members) {
      const why =
        stageLayers === undefined ? 'some layers of the model keep a window alone' : `it has ${stageLayers} layers`;
      throw new Error(`Cannot compute prompts in groups of ${pipeline.members}: ${why}`);
    }
    return { ...pipeline, layers: stageLayers };
  }

  #startInstance(index: InstanceIndex, loaded: InstanceThreadData<unknown>['loaded']): Promise<ReadyMessage> {
    if (this.#closing) throw new Error('Cannot start the instance: the server is closing');
    const { entry, instances, log } = this.#options;
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
    const onEvents = (message: OutputsMessage): void => this.#onOutputs(index, message);
    const thread = new InstanceThread({ entry, hub: this.#hub, bus: this.#bus, data, log, onOutputs: onEvents });
    const snapshot = this.#members[index]?.snapshot ?? emptySnapshot;
    const member: Member = { thread, incarnation, startedMs: performance.now(), loaded: undefined, snapshot };
    this.#members[index] = member;
    void thread.ended.then(() => this.#onLost(index));
    return thread.ready.then((message) => {
      member.loaded = message.shared && { model: message.shared, root: message.root };
      return message;
    });
  }

  #scheduleRestart(index: InstanceIndex): void {
    const delayMs = this.#backoffs[index].next(performance.now() - this.#member(index).startedMs);
    this.log(`Instance ${index} is gone: it is started anew in ${delayMs / 1000} s`);
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      this.#restart(index).catch((error: Error) => this.log(error.message));
    }, delayMs);
    this.#timers.add(timer);
  }

  /** Weights go with the last thread that has them: then the model is loaded again. */
  async #restart(index: InstanceIndex): Promise<void> {
    // Whoever has not heard of its end might answer its former life: the new one would hear that.
    await this.#bus.flush();
    if (this.#closing) return;
    const having = this.#members.find(({ loaded }, i) => !this.#lost.has(i) && loaded !== undefined);
    const message = await this.#startInstance(index, having?.loaded);
    const { capacityTokens, contextTokens } = message.description;
    const member = this.#member(index);
    member.snapshot = message.snapshot;
    this.#lost.delete(index);
    this.admission.instanceJoined(index, capacityTokens, contextTokens);
    this.feed({ kind: 'instanceJoined', instance: index, incarnation: member.incarnation, capacityTokens });
    this.#introduce(index, message);
    this.#lendingManager?.onReturned(index);
    this.log(`Instance ${index} serves again`);
  }

  #onOutputs(instance: InstanceIndex, message: OutputsMessage): void {
    this.#member(instance).snapshot = message.snapshot;
    this.admission.observe(instance, message.snapshot);
    this.recordSteps(instance, message.steps);
    this.#transfers?.observe(instance, message.snapshot);
    this.onOutputs(instance, message);
  }

  #reach(): Reach {
    return {
      forward: (instance, request, { decodeAt, prefix, group }) =>
        this.#member(instance).thread.send({ kind: 'submit', request, decodeAt, prefix, group }),
      cancel: (instance, id, interrupt) => {
        const { thread } = this.#member(instance);
        thread.send({ kind: 'cancel', id });
        if (interrupt) thread.interrupt();
      },
      tellBlocks: (instance) => this.#member(instance).thread.send({ kind: 'requestSnapshot' }),
      pin: (instance, { id, request, ttlUs }) =>
        this.#member(instance).thread.send({ kind: 'pin', id, request, ttlUs }),
      unpin: (instance, id) => this.#member(instance).thread.send({ kind: 'unpin', id }),
    };
  }

  #onLost(instance: InstanceIndex): void {
    this.#lost.add(instance);
    for (const other of this.#members) other?.thread.interruptWaits();
    const member = this.#member(instance);
    member.snapshot = snapshotAfterLoss(member.snapshot);
    const returns = this.#options.restarts === true && this.isStarted && !this.#closing;
    this.#lendingManager?.onLost(instance, returns);
    this.feed({ kind: 'instanceLost', instance });
    if (returns) this.#scheduleRestart(instance);
    else if (!this.#serves() || !this.isStarted) this.#onEnded();
    else if (!this.#closing) this.log(`Instance ${instance} is gone: the others go on`);
  }

  #serves(): boolean {
    return canServe(this.#roles.filter((_, i) => !this.#lost.has(i)));
  }

  #member(instance: InstanceIndex): Member {
    const member = this.#members[instance];
    if (member === undefined) throw new Error(`Cluster broken: instance ${instance} has not been started`);
    return member;
  }
}
