// DGFM (Infinite-LLM, section 5): finds a cycle of debts whose smallest debt can be exchanged, so that each of its
// blocks comes home.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { LedgerEdge } from '../manager/debt-ledger.ts';

export interface DebtCycle {
  /** Each owes the next, the last owes the first; `members[0]` has the lowest index. */
  readonly members: readonly InstanceIndex[];
  /** The smallest debt of the cycle. */
  readonly blocks: number;
}

/**
 * Searches from a node picked by `uniform` (in [0, 1)), then from the others in turn: finds a cycle of debts of at
 * least `blocksMin` if one exists.
 * Visits each debt at most once.
 */
export function findCycle(edges: readonly LedgerEdge[], blocksMin: number, uniform: number): DebtCycle | undefined {
  const owed = new Map<InstanceIndex, Map<InstanceIndex, number>>();
  for (const { debtor, creditor, blocks } of edges) {
    if (blocks < blocksMin) continue;
    const from = owed.get(debtor) ?? new Map<InstanceIndex, number>();
    from.set(creditor, blocks);
    owed.set(debtor, from);
  }
  const nodes = [...owed.keys()];
  const first = Math.floor(uniform * nodes.length);
  const left = new Set<InstanceIndex>();
  for (let i = 0; i < nodes.length; i++) {
    const path = walk(nodes[(first + i) % nodes.length], owed, left);
    if (path !== undefined) return asCycle(path, owed);
  }
  return undefined;
}

type Debts = ReadonlyMap<InstanceIndex, ReadonlyMap<InstanceIndex, number>>;

/** Follows debts from `start` until one leads back to the path; nodes in `left` lead to no cycle. */
function walk(start: InstanceIndex, owed: Debts, left: Set<InstanceIndex>): InstanceIndex[] | undefined {
  if (left.has(start)) return undefined;
  const path = [start];
  const creditors = [(owed.get(start) ?? new Map()).keys()];
  while (path.length > 0) {
    const next = creditors[creditors.length - 1].next();
    if (next.done === true) {
      left.add(path.pop() as InstanceIndex);
      creditors.pop();
      continue;
    }
    const met = path.indexOf(next.value);
    if (met >= 0) return path.slice(met);
    if (left.has(next.value) || !owed.has(next.value)) continue;
    path.push(next.value);
    creditors.push((owed.get(next.value) ?? new Map()).keys());
  }
  return undefined;
}

function asCycle(path: readonly InstanceIndex[], owed: Debts): DebtCycle {
  const at = path.indexOf(Math.min(...path));
  const members = [...path.slice(at), ...path.slice(0, at)];
  const debts = members.map((debtor, i) => owed.get(debtor)?.get(members[(i + 1) % members.length]) ?? 0);
  return { members, blocks: Math.min(...debts) };
}
