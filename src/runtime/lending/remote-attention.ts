// The rooms of a backend where attention is computed over lent blocks: what each member does is told where they are made (`GuestRooms` of `kernel`).
import type { LendingSnapshot } from '../../core/protocol/ports.ts';

export interface RemoteAttentionServers {
  /** @param pages (blocks, layers) */
  lendBlocks(room: number, loan: number, blocks: Int32Array, pages: Int32Array): void;
  /** Once it returns no guest work touches these blocks. */
  takeBackBlocks(room: number, loan: number, blocks: Int32Array): void;
  setGuestShare(room: number, thousandths: number): void;
  guestCounts(room: number): LendingSnapshot['guests'];
  freeGuestRoom(room: number): void;
  remoteCounts(): LendingSnapshot['remote'];
}
