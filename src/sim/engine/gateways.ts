// The gateways of a simulated cluster: each has a conductor, receives part of the requests, and sees the load of the others in reports alone.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { PoolLoads } from '../../core/router/admission/admission-controller.ts';
import type { Conductor } from '../../core/router/conductor.ts';
import type { BlockCounts } from '../../core/router/placement/placed-prompt.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { PlacedRequests } from '../../core/scheduler/placed-requests.ts';
import { scramble } from '../../util/scramble.ts';
import { ConductorDriver, type ConductorHost } from './conductor-driver.ts';
import type { GatewaySettings } from './simulation-config.ts';

type Event = ConductorEvent<LengthRequest>;

export class Gateways {
  readonly #host: ConductorHost;
  readonly #drivers: readonly ConductorDriver[];
  readonly #settings: GatewaySettings | undefined;
  /** By request: its gateway. */
  readonly #gatewayOf = new Map<RequestId, number>();
  /** (instances, gateways); empty with one gateway. */
  readonly #placed: readonly (readonly PlacedRequests[])[];
  /** (instances): time of the last report, and 1 while the next one is scheduled. */
  readonly #reportedUs: Float64Array;
  readonly #isDue: Uint8Array;
  #submitted = 0;

  /** @throws Error with learned predictors: several gateways would share what each learns alone */
  constructor(host: ConductorHost) {
    const { gateways, instances, learned } = host.config;
    const settings = gateways !== undefined && gateways.count > 1 ? gateways : undefined;
    if (settings !== undefined && learned !== undefined)
      throw new Error(`Cannot simulate ${settings.count} gateways with learned predictors: use one gateway`);
    this.#host = host;
    this.#settings = settings;
    const indices = Array.from({ length: settings?.count ?? 1 }, (_, gateway) => gateway);
    this.#drivers = indices.map(() => new ConductorDriver(host));
    this.#placed = settings === undefined ? [] : instances.map(() => indices.map(() => new PlacedRequests()));
    this.#reportedUs = new Float64Array(instances.length).fill(Number.NEGATIVE_INFINITY);
    this.#isDue = new Uint8Array(instances.length);
  }

  /** The conductor of the first gateway. */
  get conductor(): Conductor<LengthRequest> {
    return this.#drivers[0].conductor;
  }

  deliver(event: Event): void {
    if (this.#settings === undefined) this.#drivers[0].deliver(event);
    else this.#deliverToOwner(event, this.#settings);
  }

  /** Only with one gateway, which restarts. */
  restart(): void {
    for (const driver of this.#drivers) driver.restart();
  }

  observe(...observed: Parameters<ConductorDriver['observe']>): void {
    for (const driver of this.#drivers) driver.observe(...observed);
  }

  #deliverToOwner(event: Event, settings: GatewaySettings): void {
    switch (event.kind) {
      case 'submit':
        this.#submit(event, settings);
        break;
      case 'pin':
      case 'unpin':
      case 'pinUpdated':
        this.#drivers[0].deliver(event);
        break;
      case 'generationEvent':
        if (this.#placedBy(event.instance, event.id)?.observe(event.id, event.event) === true)
          this.#loadChanged(event.instance);
        this.#deliverTo(event.id, event);
        this.#forgetEnded(event.id);
        break;
      case 'prefilled':
        this.#placedBy(event.instance, event.id)?.prefilled(event.id);
        this.#loadChanged(event.instance);
        this.#deliverTo(event.id, event);
        break;
      case 'released':
        this.#deletePlaced(event.instance, event.id);
        this.#deliverTo(event.id, event);
        break;
      case 'cancel':
        this.#deliverTo(event.id, event);
        this.#forgetEnded(event.id);
        break;
      case 'outgrows':
      case 'migrated':
        this.#deliverTo(event.id, event);
        break;
      default:
        for (const driver of this.#drivers) driver.deliver(event);
    }
  }

  #submit(event: Extract<Event, { kind: 'submit' }>, settings: GatewaySettings): void {
    const { id } = event.request;
    this.#gatewayOf.set(id, this.#chooseGateway(event.request, settings));
    this.#deliverTo(id, event);
    this.#forgetEnded(id);
  }

  /** Forgets a request that its conductor has refused, or that has ended. */
  #forgetEnded(id: RequestId): void {
    const gateway = this.#gatewayOf.get(id);
    if (gateway === undefined || this.#drivers[gateway].conductor.has(id)) return;
    this.#gatewayOf.delete(id);
    for (const [instance, placed] of this.#placed.entries())
      if (placed[gateway].delete(id)) this.#loadChanged(instance);
  }

  #deliverTo(id: RequestId, event: Event): void {
    const gateway = this.#gatewayOf.get(id);
    if (gateway !== undefined) this.#drivers[gateway].deliver(event);
  }

  #chooseGateway({ trace }: LengthRequest, { count, balancing }: GatewaySettings): number {
    const turn = this.#submitted++;
    if (balancing === 'round-robin' || trace.session === undefined) return turn % count;
    return (scramble(trace.session) >>> 0) % count;
  }

  #placedBy(instance: InstanceIndex, id: RequestId): PlacedRequests | undefined {
    const gateway = this.#gatewayOf.get(id);
    return gateway === undefined ? undefined : this.#placed[instance]?.[gateway];
  }

  /** An instance receives a message: counts the requests that it brings. */
  delivered(instance: InstanceIndex, event: LengthEvent): void {
    if (this.#settings === undefined) return;
    if (event.kind === 'submit') this.#place(instance, event.request, event.cachedTokens ?? 0);
    else if (event.kind === 'cancel') this.#deletePlaced(instance, event.id);
    else if (event.kind === 'promptReceived') this.#placedBy(instance, event.id)?.received(event.id);
    else if (event.kind === 'peer') this.#deliveredByPeer(instance, event.message);
  }

  #deliveredByPeer(instance: InstanceIndex, message: Extract<LengthEvent, { kind: 'peer' }>['message']): void {
    if (message.kind === 'reserve') this.#place(instance, message.request, 'receiving');
    else if (message.kind === 'received' || message.kind === 'release') this.#deletePlaced(instance, message.id);
  }

  #deletePlaced(instance: InstanceIndex, id: RequestId): void {
    if (this.#placedBy(instance, id)?.delete(id) === true) this.#loadChanged(instance);
  }

  /** @param cached tokens of the prompt that are predicted to be cached, or `receiving`: it is computed by another instance */
  #place(instance: InstanceIndex, { id, size, trace }: LengthRequest, cached: number | 'receiving'): void {
    const { priority = 0, tenant, batch = false } = trace;
    const { promptTokens } = size;
    const cachedTokens = cached === 'receiving' ? 0 : cached;
    const request = { priority, tenant, promptTokens, cachedTokens, batch };
    this.#placedBy(instance, id)?.add(id, request, cached === 'receiving');
    this.#loadChanged(instance);
  }

  /** The load of the instance has changed: its gateways receive it as soon as the time between two reports allows. */
  #loadChanged(instance: InstanceIndex): void {
    if (this.#settings === undefined || this.#isDue[instance] === 1) return;
    this.#isDue[instance] = 1;
    const { queue } = this.#host;
    const atUs = Math.max(queue.nowUs, this.#reportedUs[instance] + this.#settings.loadReportUs);
    queue.at(atUs, () => this.#reportLoad(instance));
  }

  #reportLoad(instance: InstanceIndex): void {
    const { queue, config } = this.#host;
    this.#isDue[instance] = 0;
    this.#reportedUs[instance] = queue.nowUs;
    const placed = this.#placed[instance];
    for (const [gateway, driver] of this.#drivers.entries()) {
      const others = PlacedRequests.loadOf(placed.filter((_, other) => other !== gateway));
      queue.after(config.instances[instance].nic.us, () => driver.deliver({ kind: 'othersLoad', instance, others }));
    }
  }

  /** Means over the gateways. */
  loads(nowUs: number): PoolLoads | undefined {
    const loads = this.#drivers.map(({ conductor }) => conductor.loads(nowUs)).filter((each) => each !== undefined);
    if (loads.length === 0) return undefined;
    const mean = (of: (load: PoolLoads) => number) => loads.reduce((sum, load) => sum + of(load), 0) / loads.length;
    return { prefill: mean(({ prefill }) => prefill), decode: mean(({ decode }) => decode) };
  }

  /** Over all gateways; each has the same view of the copies. */
  get blocks(): BlockCounts {
    const all = this.#drivers.map(({ conductor }) => conductor.blocks);
    const sum = (of: (each: BlockCounts) => number) => all.reduce((total, each) => total + of(each), 0);
    const misses = {
      neverSeen: sum(({ misses }) => misses.neverSeen),
      evicted: sum(({ misses }) => misses.evicted),
      elsewhere: sum(({ misses }) => misses.elsewhere),
      partial: sum(({ misses }) => misses.partial),
    };
    return { hits: sum(({ hits }) => hits), misses, replication: all[0].replication };
  }

  get inlinePrefills(): number {
    return this.#drivers.reduce((sum, { conductor }) => sum + conductor.inlinePrefills, 0);
  }

  get groupPrefills(): number {
    return this.#drivers.reduce((sum, { conductor }) => sum + conductor.groupPrefills, 0);
  }

  get instancesStarted(): number {
    return this.#drivers.reduce((sum, { conductor }) => sum + conductor.instancesStarted, 0);
  }
}
