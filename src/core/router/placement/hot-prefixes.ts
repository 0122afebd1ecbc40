// Proactive copies of hot prefixes (Mooncake, sections 1.1 and 3): which prefix, from which instance, to which one.

import type { PrefixMatches } from '../../kvcache/events/prefix-index.ts';
import { type PrefixRun, PrefixTree } from '../../kvcache/events/prefix-tree.ts';
import type { ClusterView } from '../../protocol/cluster-view.ts';
import type { PrefixOffer } from '../../protocol/events.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import { type PlacementCosts, type PlacementDecision, prefillOn } from './placement.ts';

/** A wait counts half as much after this time: a prefix that no prompt has used for minutes is cold. */
const halfLifeUs = 60_000_000;
/** Share of the target's KV memory that one copy may take. */
const memoryShare = 1 / 8;

/** A placed prompt, and what placement has read for it. */
export interface HotPrompt {
  readonly chain: BlockChain;
  readonly tokens: number;
  readonly blockTokens: number;
  readonly decision: PlacementDecision;
  readonly matches: PrefixMatches;
  readonly view: ClusterView;
  readonly costs: PlacementCosts;
  /** KV tokens that fit into the memory of an instance. */
  readonly capacityTokens: (instance: number) => number;
}

interface Copy extends PrefixOffer {
  readonly run: PrefixRun;
  /** Waits that the copy would have avoided, less its own transfer. */
  readonly gainUs: number;
  readonly transferUs: number;
}

/**
 * A prompt that waits at the instance that has its prefix would start sooner at a free instance with a copy. Each run of blocks adds up
 * these waits. A prefix is copied once they exceed its transfer (ski rental). Prompts that fetch or compute their prefix elsewhere copy it
 * themselves and add nothing.
 */
export class HotPrefixes {
  readonly #runs = new PrefixTree();
  /** (instances): end of the copy that each one sends or receives. */
  readonly #busyUntilUs = new Map<number, number>();

  /** The copy that the prompt's instance offers now; undefined: none is worth its transfer. */
  placed(nowUs: number, prompt: HotPrompt): (PrefixOffer & { readonly fromBlocks: number }) | undefined {
    const { chain, decision, matches, costs } = prompt;
    this.#runs.add(nowUs, chain, decision.localBlocks, decision.localBlocks);
    if (decision.from !== undefined || costs.transfers === undefined) return undefined;
    const target = soonest(prompt);
    if (target === undefined) return undefined;
    const copy = this.#best(nowUs, prompt, target);
    if (copy === undefined || this.#isBusy(nowUs, decision.instance) || this.#isBusy(nowUs, target)) return undefined;
    const untilUs = nowUs + copy.transferUs;
    this.#busyUntilUs.set(decision.instance, untilUs);
    this.#busyUntilUs.set(target, untilUs);
    // The waits have paid for this copy and those of shorter prefixes; longer ones keep theirs.
    for (let run: PrefixRun | undefined = copy.run; run !== undefined; run = run.parent) run.waitedUs = 0;
    return { to: target, blocks: copy.blocks, fromBlocks: matches.blocks[target] };
  }

  #isBusy(nowUs: number, instance: number): boolean {
    return (this.#busyUntilUs.get(instance) ?? nowUs) > nowUs;
  }

  /** Adds the wait to each run of the prefix, and selects the run with the largest gain. */
  #best(nowUs: number, prompt: HotPrompt, target: number): Copy | undefined {
    const { chain, tokens, blockTokens, decision, matches, view, costs, capacityTokens } = prompt;
    const { instance, localBlocks, waitUs, prefillUs } = decision;
    const has = matches.blocks[target];
    const blocksMax = has + Math.floor((memoryShare * capacityTokens(target)) / blockTokens);
    let best: Copy | undefined;
    for (const run of this.#runs.path(chain, localBlocks)) {
      const blocks = Math.min(run.end, localBlocks);
      if (blocks <= has) continue;
      const thereUs = view.queueUs[target] + prefillOn(view, costs, target, tokens, blocks * blockTokens);
      const savedUs = waitUs + prefillUs - thereUs;
      if (savedUs <= 0) continue;
      run.waitedUs = run.waitedUs * 2 ** ((run.waitedAtUs - nowUs) / halfLifeUs) + savedUs;
      run.waitedAtUs = nowUs;
      const transferUs = costs.transfers?.transferUs(instance, target, (blocks - has) * blockTokens) ?? 0;
      const gainUs = run.waitedUs - transferUs;
      if (blocks <= blocksMax && gainUs > (best?.gainUs ?? 0)) best = { run, to: target, blocks, gainUs, transferUs };
    }
    return best;
  }
}

/** The instance where the prompt would start first if it had the prefix; undefined: no other instance starts it sooner. */
function soonest({ tokens, blockTokens, decision, matches, view, costs }: HotPrompt): number | undefined {
  const { instance, localBlocks, waitUs, prefillUs } = decision;
  let best: number | undefined;
  let bestUs = waitUs + prefillUs;
  for (let i = 0; i < view.up.length; i++) {
    if (view.up[i] === 0 || i === instance || matches.blocks[i] >= localBlocks) continue;
    if (view.queueUs[i] >= bestUs) continue;
    const us = view.queueUs[i] + prefillOn(view, costs, i, tokens, localBlocks * blockTokens);
    if (us >= bestUs || costs.transfers?.transferUs(instance, i, 0) === Number.POSITIVE_INFINITY) continue;
    best = i;
    bestUs = us;
  }
  return best;
}
