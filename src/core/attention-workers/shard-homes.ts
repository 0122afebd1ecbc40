// Which attention worker holds each shard of the KV heads, when some workers are lost for long.

/**
 * A worker that takes the shard of a lost one: the one with the fewest shards, the next in order among equals. Undefined
 * if none is ready.
 * @param homes (shards): the worker that holds each shard, or held it last
 * @param ready (shards): the shard is held
 */
export function newHome(shard: number, homes: readonly number[], ready: readonly boolean[]): number | undefined {
  const held = homes.map((_, worker) => homes.filter((home, other) => home === worker && ready[other]).length);
  let best: number | undefined;
  for (let i = 1; i < homes.length; i++) {
    const worker = (shard + i) % homes.length;
    if (held[worker] > 0 && (best === undefined || held[worker] < held[best])) best = worker;
  }
  return best;
}

/**
 * Pages of each shard: all of its worker, or an equal part while any shard is away from its own worker. So the parts
 * never overlap, whichever shards a worker holds.
 */
export function pagesPerShard(homes: readonly number[], pages: number): number {
  return homes.every((home, shard) => home === shard) ? pages : Math.floor(pages / homes.length);
}

/** The first page of a shard at its worker: 0 for the worker's own. */
export function firstPage(shard: number, home: number, shards: number, pages: number): number {
  return ((shard - home + shards) % shards) * Math.floor(pages / shards);
}
