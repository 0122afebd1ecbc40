// The distance between two instances, from what both ends of their link report ("least communication cost", Infinite-LLM
// section 4.4).
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { LinkReport, LinkTransport } from '../../protocol/lending-report.ts';

/** What a link costs: a message with its answer, and bytes. */
export interface LinkFigures {
  readonly roundTripUs: number;
  readonly bytesPerSecond: number;
}

/** Figures of a link without a recent measurement. */
const defaults: Readonly<Record<LinkTransport, LinkFigures>> = {
  thread: { roundTripUs: 20, bytesPerSecond: 8e9 },
  shared: { roundTripUs: 50, bytesPerSecond: 4e9 },
  rdma: { roundTripUs: 20, bytesPerSecond: 10e9 },
  tcp: { roundTripUs: 200, bytesPerSecond: 1e9 },
};

/** Bounds of reported figures: one outside is taken as the bound. */
const bounds = { roundTripUs: [1, 1_000_000], bytesPerSecond: [1e6, 1e12] } as const;

/** Keys and values of 256 tokens in one layer (8 KV heads of 128, bf16): what a distance counts beside a round trip. */
const distanceBytes = 2 ** 20;

/** The reported figures within their bounds; defaults of the transport, or of tcp, in place of absent ones. */
export function linkFigures(report: LinkReport | undefined): LinkFigures {
  const known = defaults[report?.transport ?? 'tcp'];
  const { roundTripUs = known.roundTripUs, bytesPerSecond = known.bytesPerSecond } = report ?? {};
  return {
    roundTripUs: clamp(roundTripUs, bounds.roundTripUs),
    bytesPerSecond: clamp(bytesPerSecond, bounds.bytesPerSecond),
  };
}

function clamp(value: number, [least, most]: readonly [number, number]): number {
  return Math.min(most, Math.max(least, value));
}

/** The links of one heartbeat by peer; of several reports about one peer the last counts. */
export type LinksByPeer = ReadonlyMap<InstanceIndex, LinkReport>;

export function linksByPeer(links: readonly LinkReport[] | undefined): LinksByPeer {
  return new Map((links ?? []).map((link) => [link.peer, link]));
}

/**
 * Distance of a link: the time of a round trip and of 1 MiB, in whole powers of two of a microsecond, so that links whose
 * measurements differ by noise are equally far. The longer time that either end reports counts: no instance can make
 * itself nearer than the other end has measured.
 */
export function linkDistance(reports: readonly (LinkReport | undefined)[]): number {
  const known = reports.filter((report) => report !== undefined);
  const ends = known.length > 0 ? known : [undefined];
  const timesUs = ends.map((report) => {
    const { roundTripUs, bytesPerSecond } = linkFigures(report);
    return roundTripUs + (distanceBytes * 1e6) / bytesPerSecond;
  });
  return Math.round(Math.log2(Math.max(...timesUs)));
}
