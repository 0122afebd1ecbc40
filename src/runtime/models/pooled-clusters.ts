// The clusters of several models behind one endpoint: the requests in flight of each, and the state of all instances together.
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type {
  ClusterPort,
  ClusterView,
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceRole,
  InstanceSnapshot,
  InstancesPort,
  PinListener,
  PinOrder,
  Readiness,
  RecentTraces,
  SharedPrefix,
} from '../../core/protocol/ports.ts';
import { queueFull, retryAfterMsMin } from '../../core/protocol/refusals.ts';
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import { emptySnapshot, snapshotAfterLoss, sumOf, withEarlier } from '../snapshots/metric-snapshots.ts';
import { nowUs } from '../threads/alarm.ts';

type Cluster = InferencePort & ClusterPort;
type Refusal = Extract<GenerationEvent, { kind: 'failed' }>;
type Sink = (event: GenerationEvent) => void;

/** The instance of a model that is not loaded: its counters stay. */
const unloadedSnapshot: InstanceSnapshot = { ...emptySnapshot, departed: true };

export interface PooledClustersOptions {
  /** Ids of the models. */
  readonly models: readonly string[];
  /** (instances of each model): their roles at the start. */
  readonly roles: readonly InstanceRole[];
  /** Requests in flight at once, of all models together. */
  readonly queueMax: number;
  /** Number of requests that wait until their model is loaded. */
  waiting(): number;
}

interface Place {
  readonly model: string;
  /** Undefined while the model is not loaded. */
  cluster: PooledCluster | undefined;
  /** (instances): counters of earlier loads. */
  earlier: readonly InstanceSnapshot[];
}

/** Instances are numbered model by model, loaded or not. */
export class PooledClusters implements InstancesPort, ClusterView {
  readonly #options: PooledClustersOptions;
  readonly #places: readonly Place[];
  readonly #listeners: ((trace: RequestTrace) => void)[] = [];
  #draining = false;

  constructor(options: PooledClustersOptions) {
    this.#options = options;
    const earlier = options.roles.map(() => unloadedSnapshot);
    this.#places = options.models.map((model) => ({ model, cluster: undefined, earlier }));
  }

  /** The cluster of a model that has been loaded. */
  attach(model: string, cluster: Cluster): PooledCluster {
    const place = this.#places.find(({ model: id }) => id === model);
    if (place === undefined) throw new Error(`Invariant violated: there is no model ${model}`);
    const first = this.#places.indexOf(place) * this.#options.roles.length;
    cluster.onEnded((trace) => {
      for (const listener of this.#listeners) listener(renumberedTrace(trace, first));
    });
    const detached = (): void => {
      place.earlier = this.#snapshotsOf(place).map((snapshot) => ({ ...snapshotAfterLoss(snapshot), departed: true }));
      place.cluster = undefined;
    };
    place.cluster = new PooledCluster(cluster, { refusal: () => this.#refusal(0), detached });
    return place.cluster;
  }

  /** Figures of the instances of each model together. */
  snapshotsByModel(): readonly { readonly model: string; readonly snapshot: InstanceSnapshot }[] {
    return this.#places.map((place) => ({ model: place.model, snapshot: sumOf(this.#snapshotsOf(place)) }));
  }

  overload(ahead: number): Refusal | undefined {
    return this.#refusal(ahead + this.#options.waiting());
  }

  /** A model that is not loaded is loaded by its first request. */
  readiness(): Readiness {
    if (this.#draining) return { kind: 'draining', message: 'running requests finish, new ones are refused' };
    return { kind: 'ready' };
  }

  snapshot(): InstanceSnapshot {
    return { ...sumOf(this.instances()), ready: this.readiness().kind === 'ready' };
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#places.flatMap((place, i) => {
      const first = i * this.#options.roles.length;
      return this.#snapshotsOf(place).map((snapshot, k) => ({
        ...renumbered(snapshot, first),
        name: `${place.model}/${k}`,
      }));
    });
  }

  roles(): readonly InstanceRole[] {
    return this.#places.flatMap(({ cluster }) => cluster?.roles() ?? this.#options.roles);
  }

  switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined {
    const { length } = this.#options.roles;
    const place = this.#places[Math.floor(instance / length)];
    if (place?.cluster === undefined) return `model '${place?.model}' is not loaded`;
    return place.cluster.switchRole(instance % length, role);
  }

  onEnded(listener: (trace: RequestTrace) => void): void {
    this.#listeners.push(listener);
  }

  requestTrace(id: RequestId): RequestTrace | undefined {
    for (const [i, { cluster }] of this.#places.entries()) {
      const trace = cluster?.requestTrace(id);
      if (trace !== undefined) return renumberedTrace(trace, i * this.#options.roles.length);
    }
    return undefined;
  }

  recentTraces(sinceUs: number, most: number): RecentTraces {
    const traces = this.#places.flatMap(({ cluster }, i) => {
      const first = i * this.#options.roles.length;
      return cluster?.recentTraces(sinceUs, most).traces.map((trace) => renumberedTrace(trace, first)) ?? [];
    });
    return { nowUs: nowUs(), traces: traces.sort((a, b) => b.submittedUs - a.submittedUs).slice(0, most) };
  }

  sharedPrefixes(most: number): readonly SharedPrefix[] {
    const { length } = this.#places;
    const numbered = (id: number | undefined, i: number) => (id === undefined ? undefined : id * length + i);
    const all = this.#places.flatMap(({ cluster }, i) =>
      (cluster?.sharedPrefixes(most) ?? []).map((prefix) => ({
        ...prefix,
        id: prefix.id * length + i,
        parent: numbered(prefix.parent, i),
      })),
    );
    return all.sort((a, b) => b.prompts - a.prompts || a.depth - b.depth).slice(0, most);
  }

  async drain(): Promise<void> {
    this.#draining = true;
    await Promise.all(this.#places.map(({ cluster }) => cluster?.drain()));
  }

  #refusal(ahead: number): Refusal | undefined {
    if (this.#draining) return { ...shuttingDown };
    const { queueMax } = this.#options;
    const accepted = this.#places.reduce((sum, { cluster }) => sum + (cluster?.accepted ?? 0), ahead);
    return accepted < queueMax ? undefined : queueFull(accepted, queueMax, retryAfterMsMin);
  }

  #snapshotsOf({ cluster, earlier }: Place): readonly InstanceSnapshot[] {
    const now = cluster?.instances();
    return now === undefined ? earlier : now.map((snapshot, k) => withEarlier(earlier[k], snapshot));
  }
}

const shuttingDown: Refusal = {
  kind: 'failed',
  code: 'SHUTTING_DOWN',
  message: 'Cannot admit request: the server is stopping',
  retryAfterMs: undefined,
};

interface ClusterOwner {
  /** Why no further request is accepted; undefined: one is. */
  refusal(): Refusal | undefined;
  detached(): void;
}

/** The cluster of one model, with its requests in flight. */
export class PooledCluster implements InferencePort, ClusterPort {
  readonly #cluster: Cluster;
  readonly #owner: ClusterOwner;
  /** Requests in flight; true: a batch job. */
  readonly #requests = new Map<RequestId, boolean>();
  readonly #pins = new Map<PinId, PinListener>();
  #isDetached = false;

  constructor(cluster: Cluster, owner: ClusterOwner) {
    this.#cluster = cluster;
    this.#owner = owner;
  }

  get isBusy(): boolean {
    return this.#requests.size > 0;
  }

  /** Requests in flight that count for the queue: all but batch jobs. */
  get accepted(): number {
    let count = 0;
    for (const isJob of this.#requests.values()) if (!isJob) count++;
    return count;
  }

  /** The model is being unloaded: its pins end, and later calls have no effect. */
  detach(): void {
    if (this.#isDetached) return;
    this.#owner.detached();
    this.#isDetached = true;
    const listeners = [...this.#pins.values()];
    this.#pins.clear();
    for (const listener of listeners) listener({ kind: 'unpinned' }, undefined);
  }

  submit(request: GenerationRequest, sink: Sink): void {
    const { id, batch = false } = request;
    const refusal = this.#isDetached ? shuttingDown : batch ? undefined : this.#owner.refusal();
    if (refusal !== undefined) {
      sink(refusal);
      return;
    }
    this.#requests.set(id, batch);
    this.#cluster.submit(request, (event) => {
      if (event.kind === 'finished' || event.kind === 'failed') this.#requests.delete(id);
      sink(event);
    });
  }

  cancel(id: RequestId): void {
    this.#requests.delete(id);
    this.#cluster.cancel(id);
  }

  pin(order: PinOrder, listener: PinListener): void {
    if (this.#isDetached) {
      listener({ kind: 'unpinned' }, undefined);
      return;
    }
    const { id } = order;
    const observed: PinListener = (state, instance) => {
      if (state.kind !== 'pinned') this.#pins.delete(id);
      listener(state, instance);
    };
    this.#pins.set(id, observed);
    this.#cluster.pin(order, observed);
  }

  unpin(id: PinId): void {
    if (!this.#isDetached) this.#cluster.unpin(id);
  }

  overload(ahead: number): Refusal | undefined {
    return this.#cluster.overload(ahead);
  }

  readiness(): Readiness {
    return this.#cluster.readiness();
  }

  snapshot(): InstanceSnapshot {
    return this.#cluster.snapshot();
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#cluster.instances();
  }

  roles(): readonly InstanceRole[] {
    return this.#cluster.roles();
  }

  switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined {
    return this.#cluster.switchRole(instance, role);
  }

  onEnded(listener: (trace: RequestTrace) => void): void {
    this.#cluster.onEnded(listener);
  }

  requestTrace(id: RequestId): RequestTrace | undefined {
    return this.#cluster.requestTrace(id);
  }

  recentTraces(sinceUs: number, most: number): RecentTraces {
    return this.#cluster.recentTraces(sinceUs, most);
  }

  sharedPrefixes(most: number): readonly SharedPrefix[] {
    return this.#cluster.sharedPrefixes(most);
  }

  drain(): Promise<void> {
    return this.#cluster.drain();
  }
}

/** Numbers of other instances of the model become those in the list of all instances. */
function renumbered(snapshot: InstanceSnapshot, first: number): InstanceSnapshot {
  const { links, activationLinks, lending } = snapshot;
  const shifted = <T extends { readonly to: number }>(all: readonly T[]) =>
    all.map((link) => ({ ...link, to: link.to + first }));
  return {
    ...snapshot,
    ...(links && { links: shifted(links) }),
    ...(activationLinks && { activationLinks: shifted(activationLinks) }),
    ...(lending && {
      lending: {
        ...lending,
        lenderNumber: lending.lenderNumber + first,
        links: lending.links.map((link) => ({ ...link, peer: link.peer + first })),
      },
    }),
  };
}

/** The same for a trace. */
function renumberedTrace(trace: RequestTrace, first: number): RequestTrace {
  if (first === 0) return trace;
  const shifted = (instance: InstanceIndex | undefined) => (instance === undefined ? undefined : instance + first);
  return {
    ...trace,
    steps: trace.steps.map((step) => ({ ...step, instance: step.instance + first })),
    placements: trace.placements.map((placement) => ({
      ...placement,
      candidates: placement.candidates.map((each) => ({ ...each, instance: each.instance + first })),
      instance: shifted(placement.instance),
      decodeAt: shifted(placement.decodeAt),
      fetchedFrom: shifted(placement.fetchedFrom),
      group: placement.group?.map((instance) => instance + first),
    })),
  };
}
