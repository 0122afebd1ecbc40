// Splits layer groups, so that sequences can keep only some tokens in some layers.
import type { LayerGroup } from '../util/step.ts';
import type { LayerRef, Op, Program } from './program.ts';

/**
 * The program with layers without a window in two groups: those that `isSparse` names by their place in the order of
 * computation, and the others. Groups are numbered in the order of their first layers.
 */
export function withSparseLayers(program: Program, isSparse: (layer: number) => boolean): Program {
  const groups: { layers: number; readonly window: number | undefined; readonly sparse?: true }[] = [];
  const refs = new Map<string, LayerRef>();
  const refOf = (layer: LayerRef): LayerRef => {
    const key = `${layer.group} ${layer.index}`;
    const known = refs.get(key);
    if (known !== undefined) return known;
    const { window } = program.groups[layer.group] as LayerGroup;
    const sparse = window === undefined && isSparse(refs.size);
    const found = groups.findIndex((group) => group.window === window && (group.sparse ?? false) === sparse);
    const group = found >= 0 ? found : groups.push({ layers: 0, window, ...(sparse && { sparse }) }) - 1;
    const ref = { group, index: groups[group].layers++ };
    refs.set(key, ref);
    return ref;
  };
  const ops = program.ops.map((op): Op => {
    switch (op.kind) {
      case 'qkv':
      case 'attention':
      case 'sendQ':
      case 'sendKV':
      case 'waitPartial':
        return { ...op, layer: refOf(op.layer) };
      default:
        return op;
    }
  });
  return { ...program, ops, groups };
}
