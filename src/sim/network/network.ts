// The network between instances: a NIC for each, narrower links between pairs, and bytes accounted by purpose.
import { type FlowId, Flows } from './flows.ts';

export const byteKinds = ['prefix', 'handoff', 'borrow', 'settle', 'activations'] as const;
export type ByteKind = (typeof byteKinds)[number];

export interface Nic {
  /** Of all NICs of the instance together, in each direction. */
  readonly bytesPerSecond: number;
  /** Latency of the first byte from memory to memory. */
  readonly us: number;
}

/** Racks of instances: those of one rack are neighbours, others communicate over the uplinks of both racks. */
export interface Racks {
  /** Consecutive instances of one rack. */
  readonly instances: number;
  /** Of one rack's uplink in each direction, shared by all of its instances. */
  readonly bytesPerSecond: number;
  /** Added to the latency between two racks. */
  readonly us: number;
}

export interface NetworkConfig {
  /** By instance. */
  readonly nics: readonly Nic[];
  /** Between two instances in each direction, where that is less than their NICs. */
  readonly linkBytesPerSecond: number | undefined;
  /** Undefined: all instances are neighbours. */
  readonly racks?: Racks | undefined;
  readonly transferListener?: TransferListener | undefined;
}

/** A stream from one instance to another. Streams of one kind between the same two have distinct names. */
interface Stream {
  readonly from: number;
  readonly to: number;
  readonly name: string;
  readonly kind: ByteKind;
}

interface Transfer extends Stream {
  readonly flow: FlowId;
  readonly startedUs: number;
}

/** A transfer that has ended, complete or not. */
interface EndedTransfer extends Stream {
  readonly startedUs: number;
  readonly endedUs: number;
  readonly bytes: number;
}

export type TransferListener = (transfer: EndedTransfer) => void;

function rackOf({ instances }: Racks, instance: number): number {
  return Math.floor(instance / instances);
}

/** True if both are in one rack. */
function isNeighbour(racks: Racks, a: number, b: number): boolean {
  return rackOf(racks, a) === rackOf(racks, b);
}

/** Figures of links between racks, for predictors: the rate without other traffic, and what they add to the latency. */
export function rackLinks({
  nics,
  linkBytesPerSecond = Number.POSITIVE_INFINITY,
  racks,
}: Pick<NetworkConfig, 'nics' | 'linkBytesPerSecond'> & { readonly racks: Racks }): (
  from: number,
  to: number,
) => Nic | undefined {
  return (from, to) => {
    if (isNeighbour(racks, from, to)) return undefined;
    const { bytesPerSecond, us } = racks;
    return {
      us,
      bytesPerSecond: Math.min(bytesPerSecond, linkBytesPerSecond, nics[from].bytesPerSecond, nics[to].bytesPerSecond),
    };
  };
}

function keyOf({ from, to, name, kind }: Stream): string {
  return `${from}>${to} ${kind} ${name}`;
}

/** (instances): bytes since the start. */
interface Traffic {
  readonly sent: Float64Array;
  readonly received: Float64Array;
}

export interface Link {
  readonly from: number;
  readonly to: number;
  readonly bytes: number;
}

/** Larger clusters have no figures of pairs. */
const pairedInstancesMax = 64;

/** A transfer that has left completely and arrives `us` later. */
export interface Departed extends Stream {
  readonly us: number;
  readonly bytes: number;
}

export class Network {
  readonly moved: Record<ByteKind, number> = { prefix: 0, handoff: 0, borrow: 0, settle: 0, activations: 0 };
  readonly #config: NetworkConfig;
  readonly #flows: Flows;
  readonly #transfers = new Map<string, Transfer>();
  readonly #byFlow: (Transfer | undefined)[] = [];
  /** Traffic of transfers that have ended. */
  readonly #ended: Traffic;
  /** (senders, receivers): bytes of ended transfers; empty where there are too many pairs. */
  readonly #pairs: Float64Array;

  constructor(config: NetworkConfig) {
    this.#config = config;
    const instances = config.nics.length;
    this.#ended = { sent: new Float64Array(instances), received: new Float64Array(instances) };
    this.#pairs = new Float64Array(instances <= pairedInstancesMax ? instances ** 2 : 0);
    this.#flows = new Flows((resource) => this.#capacity(resource));
  }

  /** True if `refresh` must run before time advances. */
  get changed(): boolean {
    return this.#flows.changed;
  }

  /** Recomputes rates after changes. */
  refresh(): void {
    this.#flows.refresh();
  }

  /** The time of the next `due`, if nothing changes. */
  get nextUs(): number {
    return this.#flows.nextUs;
  }

  /** Number of transfers under way. */
  get size(): number {
    return this.#flows.size;
  }

  /** Time of a message from one instance to another. */
  latencyUs(from: number, to: number): number {
    const { nics, racks } = this.#config;
    const us = Math.max(nics[from].us, nics[to].us);
    return racks === undefined || isNeighbour(racks, from, to) ? us : us + racks.us;
  }

  /** Bandwidth between two instances without other traffic. */
  bytesPerUs(from: number, to: number): number {
    return Math.min(...this.#path(from, to).map((resource) => this.#capacity(resource)));
  }

  /** Adds bytes to a stream that are produced at a constant rate until `untilUs`. The first bytes open it; `last` ends it. */
  stream(
    nowUs: number,
    { from, to, name, kind }: Stream,
    { bytes, untilUs, last }: { bytes: number; untilUs: number; last: boolean },
  ): void {
    const key = keyOf({ from, to, name, kind });
    let transfer = this.#transfers.get(key);
    if (transfer === undefined) {
      const flow = this.#flows.open(nowUs, this.#path(from, to));
      transfer = { flow, startedUs: nowUs, from, to, name, kind };
      this.#transfers.set(key, transfer);
      this.#byFlow[transfer.flow] = transfer;
    }
    this.#flows.offer(nowUs, transfer.flow, bytes, untilUs, last);
  }

  /** Traffic of every NIC by `nowUs`, with transfers under way, without a change of state. */
  trafficBy(nowUs: number): Traffic {
    const [sent, received] = [this.#ended.sent.slice(), this.#ended.received.slice()];
    for (const { flow, from, to } of this.#transfers.values()) {
      const bytes = this.#flows.sentBy(nowUs, flow);
      sent[from] += bytes;
      received[to] += bytes;
    }
    return { sent, received };
  }

  /** Bytes that an instance has sent, and the time that its NIC was busy with them. */
  sentBy(nowUs: number, instance: number): { readonly bytes: number; readonly copySeconds: number } {
    const bytes = this.trafficBy(nowUs).sent[instance];
    return { bytes, copySeconds: bytes / this.#config.nics[instance].bytesPerSecond };
  }

  /** Bytes of ended transfers by sender and receiver; empty where there are too many pairs. */
  get links(): readonly Link[] {
    const instances = this.#ended.sent.length;
    return [...this.#pairs.entries()]
      .filter(([, bytes]) => bytes > 0)
      .map(([pair, bytes]) => ({ from: Math.floor(pair / instances), to: pair % instances, bytes }));
  }

  /** (instances): bandwidth in each direction. */
  get nicBytesPerSecond(): readonly number[] {
    return this.#config.nics.map(({ bytesPerSecond }) => bytesPerSecond);
  }

  /** Transfers under way. */
  get transfers(): Iterable<Pick<Transfer, 'from' | 'to' | 'name' | 'kind'>> {
    return this.#transfers.values();
  }

  /** Ends a stream, if it is under way. Returns the bytes that have left. */
  stop(nowUs: number, stream: Stream): number {
    const transfer = this.#transfers.get(keyOf(stream));
    return transfer === undefined ? 0 : this.#close(nowUs, transfer);
  }

  /** Bytes of a stream under way that have left by `nowUs`, without a change of state. */
  streamSentBy(nowUs: number, stream: Stream): number {
    const transfer = this.#transfers.get(keyOf(stream));
    return transfer === undefined ? 0 : this.#flows.sentBy(nowUs, transfer.flow);
  }

  /** A transfer that has left completely by `nowUs`; undefined: no more. To be called until then. */
  due(nowUs: number): Departed | undefined {
    const flow = this.#flows.due(nowUs);
    if (flow === undefined) return undefined;
    const transfer = this.#byFlow[flow];
    if (transfer === undefined) throw new Error(`Network broken: flow ${flow} belongs to no transfer`);
    const bytes = this.#close(nowUs, transfer);
    const { from, to, name, kind } = transfer;
    return { from, to, name, kind, us: this.latencyUs(from, to), bytes };
  }

  #close(nowUs: number, transfer: Transfer): number {
    const { flow, kind, from, to, name, startedUs } = transfer;
    const bytes = this.#flows.close(nowUs, flow);
    this.#config.transferListener?.({ kind, from, to, name, startedUs, endedUs: nowUs, bytes });
    this.moved[kind] += bytes;
    this.#ended.sent[from] += bytes;
    this.#ended.received[to] += bytes;
    if (this.#pairs.length > 0) this.#pairs[from * this.#ended.sent.length + to] += bytes;
    this.#transfers.delete(keyOf(transfer));
    this.#byFlow[flow] = undefined;
    return bytes;
  }

  /** Resources: the sending side of NIC i (2 i), its receiving side (2 i + 1), the uplinks of racks alike, then the links of pairs. */
  #path(from: number, to: number): readonly number[] {
    const { nics, linkBytesPerSecond, racks } = this.#config;
    const instances = nics.length;
    const path = [2 * from, 2 * to + 1];
    if (racks !== undefined && !isNeighbour(racks, from, to))
      path.push(2 * instances + 2 * rackOf(racks, from), 2 * instances + 2 * rackOf(racks, to) + 1);
    if (linkBytesPerSecond !== undefined) path.push(4 * instances + from * instances + to);
    return path;
  }

  #capacity(resource: number): number {
    const { nics, linkBytesPerSecond = 0, racks } = this.#config;
    if (resource < 2 * nics.length) return nics[resource >> 1].bytesPerSecond / 1e6;
    return (resource < 4 * nics.length ? (racks?.bytesPerSecond ?? 0) : linkBytesPerSecond) / 1e6;
  }

  check(): void {
    this.#flows.check();
  }
}
