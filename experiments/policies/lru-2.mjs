// LRU-2 (O'Neil, O'Neil and Weikum, SIGMOD 1993): evicts the block whose use before its last one is longest ago.
// Blocks with a single use go first.

/** @type {() => import('kvasir/policy').EvictionPolicy} */
export const eviction = () => ({
  rank: ({ uses, earlierUsedUs }) => (uses > 1 ? earlierUsedUs : 0),
});
