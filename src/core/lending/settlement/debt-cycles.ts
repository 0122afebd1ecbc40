// DGFM (Infinite-LLM, section 5): finds a cycle of debts, which can be reduced by its smallest debt.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { LedgerEdge } from '../manager/debt-ledger.ts';

export interface DebtCycle {
  /** Each owes the next, and the last owes the first. The lowest index is first. */
  readonly members: readonly InstanceIndex[];
  /** The smallest debt of the cycle. */
  readonly blocks: number;
}

/**
 * Finds a cycle of debts of at least `blocksMin` if there is one. From each instance the debt to the farthest creditor is
 * followed first, because its steps wait the longest. Starts at an instance that `uniform` (in [0, 1))
 * selects, then at the others in turn, and visits each debt at most once.
 */
export function findCycle(edges: readonly LedgerEdge[], blocksMin: number, uniform: number): DebtCycle | undefined {
  const owed = new Map<InstanceIndex, Map<InstanceIndex, number>>();
  for (const { debtor, creditor, blocks } of [...edges].sort((a, b) => b.distance - a.distance)) {
    if (blocks < blocksMin) continue;
    const from = owed.get(debtor) ?? new Map<InstanceIndex, number>();
    from.set(creditor, blocks);
    owed.set(debtor, from);
  }
  const nodes = [...owed.keys()].sort((a, b) => a - b);
  const first = Math.floor(uniform * nodes.length);
  const acyclic = new Set<InstanceIndex>();
  for (let i = 0; i < nodes.length; i++) {
    const path = walk(nodes[(first + i) % nodes.length], owed, acyclic);
    if (path !== undefined) return asCycle(path, owed);
  }
  return undefined;
}

type Debts = ReadonlyMap<InstanceIndex, ReadonlyMap<InstanceIndex, number>>;

/** Follows debts from `start` until one leads back to the path. Instances in `acyclic` lead to no cycle. */
function walk(start: InstanceIndex, owed: Debts, acyclic: Set<InstanceIndex>): InstanceIndex[] | undefined {
  if (acyclic.has(start)) return undefined;
  const path = [start];
  const creditors = [(owed.get(start) ?? new Map()).keys()];
  while (path.length > 0) {
    const next = creditors[creditors.length - 1].next();
    if (next.done === true) {
      acyclic.add(path.pop() as InstanceIndex);
      creditors.pop();
      continue;
    }
    const at = path.indexOf(next.value);
    if (at >= 0) return path.slice(at);
    if (acyclic.has(next.value) || !owed.has(next.value)) continue;
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
