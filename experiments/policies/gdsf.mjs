// Greedy-Dual-Size-Frequency (Cherkasova, 1998): the rank of a block is its uses times the cost of computing it again over
// its size, above the rank of the last evicted block, so that old favourites leave in the end.

/** @type {() => import('kvasir/policy').EvictionPolicy} */
export const eviction = () => {
  let lastEvicted = 0;
  return {
    rank: ({ uses, computeUs, tokens }) => lastEvicted + (uses * computeUs) / tokens,
    evicted: (rank) => {
      lastEvicted = rank;
    },
  };
};
