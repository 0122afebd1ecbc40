// Belady's MIN (IBM Systems Journal, 1966): evicts the block whose next use is the furthest away. It needs the future, so
// only a simulation has it, and it bounds the hit ratio of every other order.

/** The workload is read once before the run, for the times of its requests. */
export const needsNextUses = true;

/** @type {() => import('kvasir/policy').EvictionPolicy} */
export const eviction = () => ({
  rank: ({ nextUseUs }) => -nextUseUs,
});
