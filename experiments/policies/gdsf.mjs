// Greedy-Dual-Size-Frequency (Cherkasova, 1998) for blocks of equal size: the rank of a block is its uses times the cost
// of computing it again, above the rank of the last evicted block, so that old favourites leave in the end.

/** Matrix products cost the same for each block; attention grows with the blocks before it. */
const attentionShare = 0.01;

/** @type {() => import('kvasir/policy').EvictionPolicy} */
export const eviction = () => {
  let lastEvicted = 0;
  return {
    rank: ({ uses, depth }) => lastEvicted + uses * (1 + attentionShare * depth),
    evicted: (rank) => {
      lastEvicted = rank;
    },
  };
};
