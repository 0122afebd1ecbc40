// The invariants of a batcher: every block reference, claim and list entry belongs to a sequence in the right state.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { KvCaches } from '../../kvcache/kv-caches.ts';
import type { BlockClaims } from './block-claims.ts';
import { outranks, type Sequence } from './sequence.ts';

interface Batch {
  readonly caches: KvCaches;
  readonly claims: BlockClaims;
  readonly running: readonly Sequence[];
  readonly waiting: readonly Sequence[];
  readonly parked: ReadonlySet<Sequence>;
}

/** Throws unless all invariants hold. */
export function checkBatch(batch: Batch): void {
  const { caches, claims, running, waiting, parked } = batch;
  const { first: cache } = caches;
  for (const [worker, each] of caches.all.entries()) {
    each.check();
    checkReferences(
      each,
      [...running, ...parked].filter((sequence) => sequence.worker === worker),
    );
  }
  let claimed = 0;
  for (const sequence of running) {
    const { table, computed, planned } = sequence;
    if (sequence.state !== 'running' || cache.blocksMissing(table, computed + planned) > 0)
      throw new Error(
        `Batcher broken: arrival ${sequence.arrival} runs with ${table.length} blocks for ${computed} tokens`,
      );
    for (let i = sequence.claimedFrom; i < sequence.claimedTo; i++)
      if (claims.owner(sequence, i) === sequence) claimed++;
  }
  for (const sequence of waiting) {
    if (sequence.state !== 'waiting' || cache.pagesOf(sequence.table) + sequence.computed + sequence.planned > 0)
      throw new Error(`Batcher broken: arrival ${sequence.arrival} waits with ${sequence.table.length} blocks`);
  }
  if (claimed !== claims.size)
    throw new Error(`Batcher broken: ${claims.size} blocks are claimed, ${claimed} by running sequences`);
  for (const list of [running, waiting]) {
    const wrong = list.findIndex((sequence, i) => i > 0 && !outranks(list[i - 1], sequence));
    if (wrong >= 0) throw new Error(`Batcher broken: arrival ${list[wrong].arrival} is out of order at ${wrong}`);
  }
}

/**
 * Throws unless every group's references are those of tables in transit, pins, and running and parked sequences. Each
 * sequence holds the blocks that its next row attends to, and none before.
 */
function checkReferences(cache: BlockCache, sequences: readonly Sequence[]): void {
  checkSlots(cache, sequences);
  for (const [g, group] of cache.groups.entries()) {
    const refs = new Int32Array(group.pool.total);
    for (const table of [...cache.inTransit, ...cache.pinned])
      for (const block of table.groups[g].blocks.view()) refs[block]++;
    for (const { table, computed, arrival, remoteBlocks } of sequences) {
      const { first, blocks, inSlots } = table.groups[g];
      for (const block of blocks.view()) refs[block]++;
      const from = inSlots ? table.length : group.firstAttended(computed);
      if (first - remoteBlocks !== from || first + blocks.length !== table.length)
        throw new Error(
          `Batcher broken: arrival ${arrival} holds blocks ${first} to ${first + blocks.length} of group ${g}: ${computed} tokens`,
        );
    }
    for (let block = 0; block < refs.length; block++)
      if (refs[block] !== group.pool.refs(block))
        throw new Error(
          `Batcher broken: block ${block} has ${group.pool.refs(block)} references, ${refs[block]} are accounted for: group ${g}`,
        );
  }
}

/** Throws unless exactly the sequences with a KV budget have slots or bounds, and use slots once their prompts are computed. */
function checkSlots(cache: BlockCache, sequences: readonly Sequence[]): void {
  let slotPages = 0;
  let boundPages = 0;
  for (const { table, sparsity, pageChoice, arrival, isSelected } of sequences) {
    const { slots, bounds } = table;
    slotPages += slots?.ids.length ?? 0;
    boundPages += bounds?.ids.length ?? 0;
    const inUse = cache.groups.some((group, g) => group.isSparse && table.groups[g].inSlots);
    const wrong = table.groups.some(({ inSlots }, g) => inSlots && !cache.groups[g].isSparse);
    if ((slots === undefined) !== (sparsity === undefined) || inUse !== isSelected || wrong)
      throw new Error(`Batcher broken: arrival ${arrival} has ${slots?.ids.length} pages of slots, in use: ${inUse}`);
    if ((bounds === undefined) !== (pageChoice === undefined) || (bounds?.missing(table.length) ?? 0) > 0)
      throw new Error(`Batcher broken: arrival ${arrival} has ${bounds?.ids.length} pages of bounds`);
  }
  if (slotPages !== cache.slots.pages || boundPages !== cache.bounds.pages)
    throw new Error(
      `Batcher broken: ${cache.slots.pages} and ${cache.bounds.pages} pages of slots and bounds are in use, sequences have ${slotPages} and ${boundPages}`,
    );
}
