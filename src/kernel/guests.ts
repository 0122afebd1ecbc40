// Attention over lent blocks, from both sides: the guest room of a creditor's pool, and what its debtors count.
import type { GuestCounts, RemoteCounts } from '../util/counts.ts';
import type { KvPoolHandle } from './backend.ts';

/** An integer, valid in every thread of the process: of `Step.remote`. */
export type RemoteAttentionHandle = number;

export interface RemoteAttentionServers {
  /** A room over a pool of this backend: computes with the backend's threads while no step runs on them, else alone and within its share. */
  createGuestRoom(pool: KvPoolHandle): RemoteAttentionHandle;
  /**
   * From now on queries of this loan find these blocks. Their pages hold whole blocks and are not written any more.
   * @param pages (blocks, layers): page ids, in the layer group that debtors name
   * @throws where a block is lent already, or the pool has no such page
   */
  lendBlocks(room: RemoteAttentionHandle, loan: number, blocks: Int32Array, pages: Int32Array): void;
  /** Once it returns no guest work touches the pages of these blocks, and queries for them are refused. Blocks that are not lent as this loan stay as they are. */
  takeBackBlocks(room: RemoteAttentionHandle, loan: number, blocks: Int32Array): void;
  /** Of one core's time, in thousandths, while steps of its own run and do not wait; 0: none then. At first all of it. */
  setGuestShare(room: RemoteAttentionHandle, thousandths: number): void;
  guestCounts(room: RemoteAttentionHandle): GuestCounts;
  /** Refuses what is open and all that comes. */
  freeGuestRoom(room: RemoteAttentionHandle): void;
  remoteCounts(): RemoteCounts;
}
