// Cache-aware routing by thresholds, as in SGLang's router: the instance with the longest cached prefix, unless its
// queue is much longer than the shortest one; then the instance with the shortest queue.

/** A longer queue by more than this outweighs a cached prefix. */
const imbalanceUs = 2_000_000;

/** @type {import('kvasir/policy').PlacementPolicy} */
export const placement = ({ matches }, { up, queueUs }) => {
  let [idle, longest] = [-1, -1];
  for (let i = 0; i < up.length; i++) {
    if (up[i] === 0) continue;
    if (idle < 0 || queueUs[i] < queueUs[idle]) idle = i;
    if (longest < 0 || (matches?.blocks[i] ?? 0) > (matches?.blocks[longest] ?? 0)) longest = i;
  }
  if (idle < 0) return undefined;
  const isBalanced = queueUs[longest] - queueUs[idle] <= imbalanceUs;
  return { instance: isBalanced && (matches?.blocks[longest] ?? 0) > 0 ? longest : idle };
};
