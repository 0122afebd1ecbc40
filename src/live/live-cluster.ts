// An inference port over instances on worker threads: the conductor decides at once on this thread, each instance computes on its own.
import { webcrypto } from 'node:crypto';
import { MessageChannel, type MessagePort } from 'node:worker_threads';
import { sizeOf } from '../cluster/admission.ts';
import { Conductor, type InstanceRole } from '../cluster/conductor.ts';
import type { ConductorEffect } from '../cluster/effects.ts';
import type { ConductorEvent, InstanceIndex } from '../cluster/messages.ts';
import type {
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
  RequestId,
} from '../cluster/ports.ts';
import { TokenPlacement } from '../cluster/token-placement.ts';
import { TokenProgress } from '../cluster/token-progress.ts';
import { Alarm, nowUs } from './alarm.ts';
import { InstanceThread } from './instance-thread.ts';
import type { EventsMessage, InstanceDescription, InstanceThreadData, ReadyMessage } from './protocol.ts';
import { nothingYet, sumOf } from './snapshots.ts';

const stillLoading: GenerationEvent = {
  kind: 'failed',
  code: 'NOT_READY',
  message: 'Cannot admit request: the model is still loading: /ready tells when it is there',
  retryAfterMs: 1000,
};

export interface LiveClusterOptions {
  /** Module that the threads run: it makes an instance and starts an InstanceLoop. */
  readonly entry: URL;
  /** (instances), one at least: what each is for, and settings for the module. */
  readonly instances: readonly { readonly role: InstanceRole; readonly settings: unknown }[];
  /** Requests accepted at once. */
  readonly queueMax: number;
  readonly log: (message: string) => void;
}

/** What is lost with an instance is tried on another one, once: a request may be what it died of. */
const triesMax = 2;

interface Member {
  readonly thread: InstanceThread;
  snapshot: InstanceSnapshot;
}

/** The first instance loads the model; the others start when it has, over the same weights where threads can share them. */
export class LiveCluster implements InferencePort {
  readonly #options: LiveClusterOptions;
  readonly #hashKey = webcrypto.getRandomValues(new Uint32Array(4));
  readonly #members: Member[] = [];
  readonly #gone = new Set<InstanceIndex>();
  readonly #sinks = new Map<RequestId, (event: GenerationEvent) => void>();
  readonly #ready: Promise<readonly InstanceDescription[]>;
  readonly #ended: Promise<void>;
  readonly #placement: TokenPlacement | undefined;
  /** (instances, instances): from one to another, where prompts are handed over. */
  readonly #ports: readonly (readonly (MessagePort | undefined)[])[];
  #over: () => void = () => {};
  /** undefined until all instances are ready. */
  #conductor: Conductor<GenerationRequest> | undefined;
  /** Effects of so many events are being carried out, one within another. */
  #carrying = 0;
  readonly #cancels: RequestId[] = [];
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'wake' }));
  #draining = false;
  #closing = false;
  #drained: (() => void) | undefined;

  constructor(options: LiveClusterOptions) {
    this.#options = options;
    this.#placement = options.instances.length > 1 ? new TokenPlacement(this.#hashKey) : undefined;
    this.#ports = portsBetween(options.instances.map(({ role }) => role));
    this.#ended = new Promise((resolve) => {
      this.#over = resolve;
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

  submit(request: GenerationRequest, sink: (event: GenerationEvent) => void): void {
    if (this.#conductor === undefined) {
      sink(stillLoading);
      return;
    }
    this.#sinks.set(request.id, sink);
    this.#feed({ kind: 'submit', request });
  }

  overload(ahead: number): Extract<GenerationEvent, { kind: 'failed' }> | undefined {
    return this.#conductor?.overload(nowUs(), ahead);
  }

  cancel(id: RequestId): void {
    if (!this.#sinks.delete(id)) return;
    // From within a sink: what its event came with is carried out first, or an instance would hear of the cancel before the request.
    if (this.#carrying > 0) this.#cancels.push(id);
    else this.#feed({ kind: 'cancel', id });
  }

  snapshot(): InstanceSnapshot {
    const sum = sumOf(this.instances());
    return { ...sum, ready: this.#serves() && this.#conductor !== undefined && !this.#draining };
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#options.instances.map((_, i) => this.#members[i]?.snapshot ?? nothingYet);
  }

  drain(): Promise<void> {
    this.#draining = true;
    if (this.#conductor === undefined) return Promise.resolve();
    return new Promise((resolve) => {
      this.#drained = resolve;
      this.#feed({ kind: 'drain' });
    });
  }

  /** Ends all threads; requests under way fail. */
  async close(): Promise<void> {
    this.#closing = true;
    await Promise.all(this.#members.map(({ thread }) => thread.close()));
  }

  async #start(): Promise<readonly InstanceDescription[]> {
    const first = await this.#startOne(0, undefined);
    const loaded = first.shared && { model: first.shared, root: first.root };
    const rest = this.#options.instances.slice(1).map((_, i) => this.#startOne(i + 1, loaded));
    const messages = [first, ...(await Promise.all(rest))];
    this.#placement?.begin(
      first.root,
      messages.map(({ description }) => description.threads),
    );
    this.#conductor = new Conductor({
      instances: messages.map(({ description: { capacityTokens } }, i) => ({ capacityTokens, role: this.#role(i) })),
      queueMax: this.#options.queueMax,
      size: sizeOf,
      retries: { triesMax, progressOf: (request) => new TokenProgress(request) },
      ...(this.#placement && { placement: this.#placement.config }),
    });
    for (const [i, { snapshot }] of messages.entries()) if (!this.#gone.has(i)) this.#member(i).snapshot = snapshot;
    return messages.map(({ description }) => description);
  }

  #startOne(index: InstanceIndex, loaded: InstanceThreadData<unknown>['loaded']): Promise<ReadyMessage> {
    if (this.#closing) throw new Error('Cannot start the instance: the server is closing');
    const { entry, instances, log } = this.#options;
    const data = {
      settings: instances[index].settings,
      role: this.#role(index),
      peers: this.#ports[index],
      hashKey: this.#hashKey,
      journals: this.#placement !== undefined,
      loaded,
    };
    const thread = new InstanceThread({ entry, data, log, onEvents: (message) => this.#hear(index, message) });
    this.#members[index] = { thread, snapshot: nothingYet };
    void thread.ended.then(() => this.#lost(index));
    return thread.ready;
  }

  #hear(instance: InstanceIndex, message: EventsMessage): void {
    const { events, snapshot, prefilled, letGo, journals, blocks } = message;
    this.#member(instance).snapshot = snapshot;
    for (const journal of journals) this.#feed({ kind: 'journal', instance, journal });
    if (blocks !== undefined) this.#feed({ kind: 'snapshot', instance, snapshot: blocks });
    for (const [id, event] of events) {
      this.#placement?.heard(nowUs(), id, event);
      this.#feed({ kind: 'heard', instance, id, event });
    }
    for (const id of prefilled) {
      this.#placement?.prefilled(nowUs(), id);
      this.#feed({ kind: 'prefilled', instance, id });
    }
    for (const [id, why] of letGo) this.#feed({ kind: 'letGo', instance, id, why });
  }

  #lost(instance: InstanceIndex): void {
    this.#gone.add(instance);
    const member = this.#member(instance);
    member.snapshot = { ...member.snapshot, ready: false };
    this.#feed({ kind: 'instanceLost', instance });
    if (!this.#serves() || this.#conductor === undefined) this.#over();
    else if (!this.#closing) this.#options.log(`Instance ${instance} is gone: the others go on`);
  }

  /** Is there one that does all, or one for each part? */
  #serves(): boolean {
    const roles = new Set(this.#options.instances.flatMap(({ role }, i) => (this.#gone.has(i) ? [] : [role])));
    return roles.has('mixed') || (roles.has('prefill') && roles.has('decode'));
  }

  #role(instance: InstanceIndex): InstanceRole {
    return this.#options.instances[instance].role;
  }

  #feed(event: ConductorEvent): void {
    if (this.#conductor === undefined) return;
    this.#carrying++;
    for (const effect of this.#conductor.step(nowUs(), event)) this.#carryOut(effect);
    this.#carrying--;
    if (this.#carrying > 0) return;
    const cancel = this.#cancels.shift();
    if (cancel !== undefined) this.#feed({ kind: 'cancel', id: cancel });
    else this.#alarm.set(this.#closing ? Number.POSITIVE_INFINITY : this.#conductor.nextUs);
  }

  #carryOut(effect: ConductorEffect): void {
    switch (effect.kind) {
      case 'emit':
        this.#emit(effect.id, effect.event);
        break;
      case 'forward': {
        const { instance, request, decodeAt } = effect;
        this.#placement?.forwarded(instance, request);
        this.#member(instance).thread.send({ kind: 'submit', request, decodeAt });
        break;
      }
      case 'cancel': {
        this.#placement?.left(effect.id);
        const { thread } = this.#member(effect.instance);
        thread.send({ kind: 'cancel', id: effect.id });
        if (effect.interrupt) thread.interrupt();
        break;
      }
      case 'askBlocks':
        this.#member(effect.instance).thread.send({ kind: 'tellBlocks' });
        break;
      case 'drained':
        this.#drained?.();
        break;
      case 'ignored':
        this.#options.log(effect.message);
    }
  }

  #emit(id: RequestId, event: GenerationEvent): void {
    const sink = this.#sinks.get(id);
    if (event.kind === 'finished' || event.kind === 'failed') this.#sinks.delete(id);
    try {
      sink?.(event);
    } catch (error) {
      // One request's trouble must not end those that are heard after it.
      this.#options.log(
        `Request ${id}: its events cannot be taken: ${error instanceof Error ? error.stack : String(error)}`,
      );
      this.cancel(id);
    }
  }

  #member(instance: InstanceIndex): Member {
    const member = this.#members[instance];
    if (member === undefined) throw new Error(`Cluster broken: instance ${instance} has not been started`);
    return member;
  }
}

/** A channel between each that prefills and each that decodes. */
function portsBetween(roles: readonly InstanceRole[]): readonly (readonly (MessagePort | undefined)[])[] {
  const ports = roles.map(() => roles.map((): MessagePort | undefined => undefined));
  for (const [from, role] of roles.entries()) {
    if (role !== 'prefill') continue;
    for (const [to, other] of roles.entries()) {
      if (other !== 'decode') continue;
      const { port1, port2 } = new MessageChannel();
      ports[from][to] = port1;
      ports[to][from] = port2;
    }
  }
  return ports;
}
