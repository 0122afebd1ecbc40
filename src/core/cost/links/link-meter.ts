// Measurements of the links of an instance: the least round trip and the mean rate of the last half minute or minute.
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { LinkReport, LinkTransport } from '../../protocol/lending-report.ts';

/** A figure is absent once it has no sample of this window or the one before. */
const windowUs = 30_000_000;
/** Fewer bytes measure the start of a copy, not the link. */
export const rateBytesMin = 64 * 1024;

/** Samples of one window. */
interface Samples {
  readonly startUs: number;
  roundTripUs: number | undefined;
  bytes: number;
  us: number;
}

interface Measured {
  transport: LinkTransport | undefined;
  /** Of the last sample. */
  sampledUs: number;
  earlier: Samples | undefined;
  current: Samples;
}

export class LinkMeter {
  readonly #links = new Map<InstanceIndex, Measured>();

  connected(nowUs: number, peer: InstanceIndex, transport: LinkTransport): void {
    this.#sampled(nowUs, peer).transport = transport;
  }

  /** The least counts: a busy process delays a message, and none arrives too early. */
  roundTrip(nowUs: number, peer: InstanceIndex, us: number): void {
    if (us < 0) return;
    const { current } = this.#sampled(nowUs, peer);
    current.roundTripUs = Math.min(us, current.roundTripUs ?? us);
  }

  /** @param us time of copying alone, without waits for pages to be computed */
  transferred(nowUs: number, peer: InstanceIndex, bytes: number, us: number): void {
    if (bytes < rateBytesMin || us <= 0) return;
    const { current } = this.#sampled(nowUs, peer);
    current.bytes += bytes;
    current.us += us;
  }

  forget(peer: InstanceIndex): void {
    this.#links.delete(peer);
  }

  /**
   * All links, in whole units; figures without a recent sample are absent. Links to other processes are measured every few
   * seconds: one without a recent sample leads to a peer that has departed, and is forgotten.
   */
  reports(nowUs: number): readonly LinkReport[] {
    for (const [peer, { transport, sampledUs }] of this.#links)
      if (transport !== 'thread' && nowUs - sampledUs >= 2 * windowUs) this.#links.delete(peer);
    return [...this.#links.keys()].map((peer) => this.report(nowUs, peer));
  }

  report(nowUs: number, peer: InstanceIndex): LinkReport {
    if (!this.#links.has(peer)) return { peer };
    const { transport, earlier, current } = this.#at(nowUs, peer);
    const bytes = (earlier?.bytes ?? 0) + current.bytes;
    const us = (earlier?.us ?? 0) + current.us;
    const trips = [earlier?.roundTripUs, current.roundTripUs].filter((trip) => trip !== undefined);
    return {
      peer,
      ...(transport && { transport }),
      ...(trips.length > 0 && { roundTripUs: Math.round(Math.min(...trips)) }),
      ...(us > 0 && { bytesPerSecond: Math.round((bytes * 1e6) / us) }),
    };
  }

  /** The link of a sample. */
  #sampled(nowUs: number, peer: InstanceIndex): Measured {
    const link = this.#at(nowUs, peer);
    link.sampledUs = nowUs;
    return link;
  }

  /** The link, with its windows moved on to `nowUs`. */
  #at(nowUs: number, peer: InstanceIndex): Measured {
    const empty = (startUs: number): Samples => ({ startUs, roundTripUs: undefined, bytes: 0, us: 0 });
    const unknown = { transport: undefined, sampledUs: nowUs, earlier: undefined, current: empty(nowUs) };
    const link = this.#links.get(peer) ?? unknown;
    this.#links.set(peer, link);
    const passed = nowUs - link.current.startUs;
    if (passed >= windowUs) {
      link.earlier = passed < 2 * windowUs ? link.current : undefined;
      link.current = empty(nowUs);
    }
    return link;
  }
}
