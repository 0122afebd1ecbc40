// What a borrower is given, hears, wants and counts.
import type { InstanceEvent } from '../../protocol/events.ts';
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { LendingPolicy } from '../lending-policy.ts';
import type { LendingTimes } from '../times.ts';

export interface BorrowingConfig {
  readonly instance: InstanceIndex;
  readonly policy: LendingPolicy;
  readonly times: LendingTimes;
  readonly stagingBlocks: number;
  /** Of host memory that holds KV beyond the instance's own: sequences' and others'. None unless given. */
  readonly hostBlocks?: number | undefined;
  /** Where contents are real: the page at which that host memory begins, block after block. */
  readonly hostFirstPage?: number | undefined;
  /** Prompts that no instance could hold are handed over too: each has memory to land in before it starts. Not with groups that prefill together. */
  readonly handsOver?: boolean | undefined;
  /** Blocks that all others together may lend, and those of its own host memory. */
  readonly borrowableBlocks: number;
  /** Blocks that move together: those of whole attention ranges. */
  readonly rangeBlocks: number;
}

export type BorrowerEvent = Extract<
  InstanceEvent<never, never>,
  {
    kind:
      | 'lending'
      | 'moved'
      | 'moveBroken'
      | 'creditorCut'
      | 'remoteAttentionLoad'
      | 'instanceLost'
      | 'lenders'
      | 'wake';
  }
>;

export interface BorrowingTotals {
  readonly lentBlocks: number;
  readonly borrowedBlocks: number;
  readonly remoteBlocks: number;
  /** Of those, what no sequence has, but is kept as cache. */
  readonly keptBlocks: number;
  /** Of its sequences, in its own host memory. */
  readonly ownHostBlocks: number;
  readonly movedBlocks: number;
  /** Of those, to host memory: its own or a creditor's. */
  readonly hostBlocks: number;
  readonly vacatedBlocks: number;
  readonly homeBlocks: number;
  readonly lostBlocks: number;
  readonly stalls: number;
  readonly stallUs: number;
}

const ours: ReadonlySet<string> = new Set([
  'lending',
  'moved',
  'moveBroken',
  'creditorCut',
  'remoteAttentionLoad',
  'instanceLost',
  'lenders',
  'wake',
]);

export function isForBorrower(event: BorrowerEvent | { readonly kind: string }): event is BorrowerEvent {
  return ours.has(event.kind);
}
