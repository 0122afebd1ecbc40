// Cached prefixes that the members of a pipeline group share, and the transfer of a longer one to all members.

import type { TransferTimes } from '../cost/transfer-times.ts';
import type { PrefixMatches } from '../kvcache/events/prefix-index.ts';
import { longestMatch } from '../kvcache/events/prefix-index.ts';
import type { GroupPrefix } from '../protocol/events.ts';
import type { InstanceIndex } from '../protocol/ids.ts';
import type { KnownPrefix } from './group.ts';

type Members = readonly InstanceIndex[];

export class GroupPrefixes {
  /** Matches of the prompt of the last lookup. */
  readonly #matches: PrefixMatches;
  /** Undefined: prefixes are not transferred. */
  readonly #transfers: TransferTimes | undefined;
  readonly #blockTokens: number;

  constructor(matches: PrefixMatches, transfers: TransferTimes | undefined, blockTokens: number) {
    this.#matches = matches;
    this.#transfers = transfers;
    this.#blockTokens = blockTokens;
  }

  /** The prefix that all members have, and the longest one that an instance can send them. Valid until the next lookup. */
  known(nowUs: number): (members: Members) => readonly KnownPrefix[] {
    const transfers = this.#transfers;
    const longest = transfers && longestMatch(this.#matches, { backlogUs: (each) => transfers.backlogUs(nowUs, each) });
    return (members) => this.#knownTo(nowUs, members, longest);
  }

  #knownTo(nowUs: number, members: Members, longest: InstanceIndex | undefined): readonly KnownPrefix[] {
    const { blocks: cached } = this.#matches;
    const common = Math.min(...members.map((i) => cached[i]));
    const known: KnownPrefix[] = [];
    const commonTokens = common * this.#blockTokens;
    if (common > 0) known.push({ blocks: common, tokens: commonTokens, from: longest, transferUs: 0 });
    const lacking = longest === undefined ? undefined : members.find((i) => cached[i] < cached[longest]);
    if (longest === undefined || lacking === undefined) return known;
    const blocks = cached[longest];
    const tokens = (this.#lackedBlocks(members, blocks) * this.#blockTokens) / members.length;
    const transferUs = this.#transfers?.predictUs(nowUs, longest, lacking, tokens) ?? 0;
    return [{ blocks, tokens: blocks * this.#blockTokens, from: longest, transferUs }, ...known];
  }

  /** The prefix is sent to the members. */
  send(nowUs: number, members: Members, { from, blocks }: GroupPrefix): void {
    if (from === undefined) return;
    for (const member of members) {
      const tokens = (this.#lackedBlocks([member], blocks) * this.#blockTokens) / members.length;
      if (tokens > 0) this.#transfers?.add(nowUs, from, member, tokens);
    }
  }

  /** Blocks of the first `blocks` of the prompt that the members lack, summed. */
  #lackedBlocks(members: Members, blocks: number): number {
    return members.reduce((sum, i) => sum + Math.max(0, blocks - this.#matches.blocks[i]), 0);
  }
}
