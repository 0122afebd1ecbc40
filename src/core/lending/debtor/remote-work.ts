// The attention work of a step at creditors: rows over keys that lie there.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { RemoteWork } from '../../protocol/lending-effects.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RBlockTable } from '../rblock-table.ts';
import type { Debt } from './debt.ts';
import type { RemoteBlockMap } from './remote-blocks.ts';

type Counts = { -readonly [K in keyof RemoteWork]: RemoteWork[K] };

interface Lending {
  readonly instance: InstanceIndex;
  readonly table: RBlockTable;
  readonly debts: Iterable<Debt>;
  readonly blockTokens: number;
}

/**
 * Work by creditor; the instance itself stands for its own host memory. Undefined when no planned row attends to remote
 * keys.
 */
export function remoteWork(
  planned: readonly { readonly sequence: Sequence }[],
  remote: ReadonlyMap<Sequence, RemoteBlockMap>,
  { instance, table, debts, blockTokens }: Lending,
): readonly RemoteWork[] | undefined {
  const work = new Map<InstanceIndex, Counts>();
  for (const { sequence } of planned) {
    for (const [creditor, { blocks, hostBlocks }] of remote.get(sequence)?.remoteCounts(instance, table) ?? []) {
      const of = work.get(creditor) ?? {
        creditor,
        rows: 0,
        keyRows: 0,
        decodeRows: 0,
        decodeKeys: 0,
        hostTokens: 0,
        remoteAttentionPermille: 0,
      };
      work.set(creditor, of);
      of.hostTokens += hostBlocks * blockTokens;
      if (creditor === instance) continue;
      const rows = sequence.planned;
      of.rows += rows;
      of.keyRows += rows * blocks * blockTokens;
      if (rows > 1) continue;
      of.decodeRows++;
      of.decodeKeys += blocks * blockTokens;
    }
  }
  if (work.size === 0) return undefined;
  for (const { creditor, remoteAttentionPermille } of debts) {
    const of = work.get(creditor);
    if (of !== undefined) of.remoteAttentionPermille += remoteAttentionPermille;
  }
  return [...work.values()].sort((a, b) => a.creditor - b.creditor);
}
