// A frame of the dashboard: the state of a cluster at one time, live, recorded or simulated, in bounded size.
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import { type InstanceSnapshot, pageAgeBoundsS, type SharedPrefix } from '../../core/protocol/ports.ts';
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import { type ClassLatencies, classLatencies, type LatencyBounds } from './class-latencies.ts';
import { type RequestRow, requestRow } from './request-rows.ts';

/** Links and debts of a frame: the largest ones. */
const edgesMax = 400;
/** A larger cluster has frames with fewer details: see `detailOf`. */
const instancesInDetail = 200;

/** Owners of pages that a frame names of each instance, and rows of requests: a frame of 1,000 instances has 200 kB. */
export function detailOf(instances: number): { readonly owners: number; readonly rows: number } {
  return instances <= instancesInDetail ? { owners: 4, rows: 100 } : { owners: 1, rows: 40 };
}

/** Fields of an instance's row, in this order. */
export const instanceColumns = [
  ...['name', 'role', 'ready', 'waiting', 'running'],
  ...['pages', 'used', 'cached', 'free', 'pinned', 'lent', 'ages', 'owners'],
  ...['host', 'host_max', 'ssd', 'ssd_max'],
  ...['computed_tokens', 'cached_tokens', 'output_tokens', 'evicted_blocks', 'preemptions'],
  ...['sent_bytes', 'borrowed_blocks', 'settled_blocks', 'recalled_blocks', 'lost_blocks'],
] as const;

type Cell = string | number | readonly number[] | readonly (readonly [id: string, pages: number])[];

export interface DashboardFrame {
  readonly object: 'kvasir.dashboard';
  readonly models: readonly string[];
  readonly ready: boolean;
  /** Since 1970, and on the clock of requests. */
  readonly at_ms: number;
  readonly now_ms: number;
  /** Tokens of a block, and bytes of their keys and values; 0: not known. */
  readonly block_tokens: number;
  readonly block_bytes: number;
  readonly page_ages_s: readonly number[];
  readonly columns: readonly string[];
  readonly instances: readonly (readonly Cell[])[];
  /** KV bytes from one instance to another since the start, and bytes without acknowledgement. */
  readonly links: readonly (readonly [from: number, to: number, bytes: number, backlog: number])[];
  readonly debts: readonly (readonly [debtor: number, creditor: number, blocks: number])[];
  readonly classes: readonly ClassLatencies[];
  readonly refusals: readonly (readonly [reason: string, sloClass: string, requests: number])[];
  /** Those that have changed since the frame before, the latest submissions first. */
  readonly requests: readonly RequestRow[];
  readonly prefixes: readonly SharedPrefix[];
}

export interface FrameInput {
  readonly models: readonly string[];
  readonly ready: boolean;
  readonly atMs: number;
  readonly nowUs: number;
  /** Start of the traces' clock in microseconds since 1970. */
  readonly originUs: number;
  readonly kvTokenBytes: number | undefined;
  readonly snapshots: readonly InstanceSnapshot[];
  readonly roles: readonly InstanceRole[];
  /** Recent requests, from which latencies follow; and those that become rows. */
  readonly traces: readonly RequestTrace[];
  readonly changed: readonly RequestTrace[];
  readonly boundsOf: (sloClass: string) => LatencyBounds | undefined;
  readonly refusals: DashboardFrame['refusals'];
  readonly prefixes: readonly SharedPrefix[];
}

export function dashboardFrame(input: FrameInput): DashboardFrame {
  const { models, ready, atMs, nowUs, originUs, kvTokenBytes = 0, snapshots, roles, refusals, prefixes } = input;
  const names = snapshots.map(({ name }, i) => name ?? `${roles[i] ?? 'instance'} ${i}`);
  const place = (instance: number) => names[instance] ?? `instance ${instance}`;
  const blockTokens = snapshots.find(({ blocks }) => blocks !== undefined)?.blocks?.tokens ?? 0;
  return {
    object: 'kvasir.dashboard',
    ...{ models, ready, at_ms: atMs, now_ms: Math.round(nowUs) / 1000 },
    ...{ block_tokens: blockTokens, block_bytes: blockTokens * kvTokenBytes, page_ages_s: pageAgeBoundsS },
    columns: instanceColumns,
    instances: snapshots.map((snapshot, i) =>
      rowOf(snapshot, names[i] ?? '', roles[i], detailOf(snapshots.length).owners),
    ),
    links: linksOf(snapshots),
    debts: debtsOf(snapshots),
    classes: classLatencies(input.traces, input.boundsOf),
    refusals,
    requests: input.changed.map((trace) => requestRow(trace, { originUs, place })),
    prefixes,
  };
}

function rowOf(
  snapshot: InstanceSnapshot,
  name: string,
  role: InstanceRole | undefined,
  owners: number,
): readonly Cell[] {
  const { pages, memory, tiers, lending } = snapshot;
  const state = snapshot.departed === true ? 2 : Number(snapshot.ready);
  const { host, ssd } = tiers ?? { host: noTier, ssd: noTier };
  return [
    ...[name, role ?? '', state, snapshot.waiting, snapshot.running],
    ...[pages.total, pages.used, pages.cached, pages.free, memory?.pinned ?? 0, memory?.lent ?? 0],
    ...[memory?.pagesByAge ?? [], memory?.owners.slice(0, owners) ?? []],
    ...[host.blocks, host.capacity, ssd.blocks, ssd.capacity],
    ...[snapshot.computedPromptTokens, snapshot.cachedTokens, snapshot.generatedTokens],
    ...[snapshot.evictedBlocks, snapshot.preemptions, snapshot.sent?.bytes ?? 0],
    ...[
      lending?.borrowedBlocks ?? 0,
      lending?.settledBlocks ?? 0,
      lending?.vacatedBlocks ?? 0,
      lending?.lostBlocks ?? 0,
    ],
  ];
}

const noTier = { blocks: 0, capacity: 0 };

function linksOf(snapshots: readonly InstanceSnapshot[]): DashboardFrame['links'] {
  const links = snapshots.flatMap(({ links = [] }, from) =>
    links.map(({ to, bytes, backlogBytes }) => [from, to, bytes, backlogBytes] as const),
  );
  return largest(links);
}

function debtsOf(snapshots: readonly InstanceSnapshot[]): DashboardFrame['debts'] {
  const places = new Map(snapshots.map(({ lending }, instance) => [lending?.lenderNumber, instance]));
  const debts = snapshots.flatMap(({ lending }, debtor) =>
    (lending?.links ?? []).flatMap(({ peer, borrowedBlocks }) => {
      const creditor = places.get(peer);
      return creditor === undefined || borrowedBlocks === 0 ? [] : [[debtor, creditor, borrowedBlocks] as const];
    }),
  );
  return largest(debts);
}

/** The edges with the most bytes or blocks. */
function largest<Edge extends readonly [number, number, number, ...number[]]>(edges: readonly Edge[]): readonly Edge[] {
  return [...edges].sort((a, b) => b[2] - a[2]).slice(0, edgesMax);
}
