// No block that a transfer under way may still read is free or reused: followed from the effects that start the transfer.

import type { LengthEffect, LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { BlockTableView } from '../../core/protocol/kv-events.ts';
import type { SlotTable } from '../../util/step.ts';
import type { ByteKind, Network } from '../network/network.ts';
import { LentCopies } from './lent-copies.ts';

interface TransferHost {
  readonly instances: readonly LengthInstance[];
  readonly network: Network;
  readonly streams: { tokensSent(from: InstanceIndex, to: InstanceIndex, id: string): number };
  incarnationOf(instance: InstanceIndex): number;
}

/** The owner of the blocks in a table. */
interface Owner {
  readonly table: BlockTableView;
  /** Number of its remote blocks, and the first of them. */
  readonly remoteBlocks: number;
  readonly remoteFrom: number;
}

/** A block that a hand-off reads, or the kept tokens of a sequence. */
interface SentBlock {
  readonly table: BlockTableView;
  /** A block of the owner, an entry of its table, or its slots. */
  readonly at: { readonly block: number } | { readonly entry: number } | { readonly slots: SlotTable };
  /** Of the block, or of the first page of slots. */
  readonly id: number;
  /** The block is read until this number of tokens has left. */
  readonly upTo: number;
}

/** Blocks that leave home for a creditor, and the table of their owner. */
interface MovedBlocks {
  readonly table: BlockTableView;
  readonly blocks: number[];
}

type Fill = Extract<LengthEffect, { kind: 'fillBlocks' }>;
type Stream = Extract<LengthEffect, { kind: 'stream' }>;

export class TransferChecks {
  readonly #blockTokens: number;
  readonly #host: TransferHost;
  /** By kind, sender, receiver and name. */
  readonly #sent = new Map<string, SentBlock[]>();
  /** By instance and move. */
  readonly #moved = new Map<string, MovedBlocks>();
  readonly #lent = new LentCopies();

  constructor(blockTokens: number, host: TransferHost) {
    this.#blockTokens = blockTokens;
    this.#host = host;
  }

  /** An instance has emitted these effects. */
  stepped(index: InstanceIndex, effects: readonly LengthEffect[]): void {
    const instance = this.#host.instances[index];
    for (const effect of effects) {
      if (effect.kind === 'runStep') this.#checkComputed(index, instance);
      else if (effect.kind === 'fillBlocks') this.#filled(index, instance, effect);
      else if (effect.kind === 'moveBlocks') this.#lent.start(index, instance, moveOf(index, effect.move), effect);
      else if (effect.kind === 'stopMove') this.#stopped(moveOf(index, effect.move));
      else if (effect.kind === 'stream') this.#streamed(index, instance, effect);
      else if (effect.kind === 'haltStream')
        this.#truncate(keyOf('handoff', index, effect.to, effect.id), Math.floor(effect.from / this.#blockTokens));
      else if (effect.kind === 'stopStream') this.#sent.delete(keyOf(effect.of, index, effect.to, effect.id));
    }
  }

  #streamed(index: InstanceIndex, instance: LengthInstance, { id, to, from, tokens, table, range }: Stream): void {
    const key = keyOf('handoff', index, to, id);
    const sent = this.#sent.get(key) ?? [];
    this.#sent.set(key, sent);
    const end = from + tokens;
    const held = table.groups[0].blocks;
    if (range !== undefined) {
      // The pages of a range of layers may be anywhere in the table.
      for (let entry = 0; entry < held.length; entry++)
        sent.push({ table, at: { entry }, id: held.at(entry), upTo: end });
      return;
    }
    const { slots } = table;
    if (slots !== undefined) sent.push({ table, at: { slots }, id: slots.pages[0], upTo: end });
    // Without full layers, slots are all that is sent.
    if (slots !== undefined && held.length === 0) return;
    const owner = ownerOf(instance, table);
    // A request that migrates during its decode has no keys of its last token.
    const blocksEnd = Math.min(Math.ceil(end / this.#blockTokens), table.length);
    for (let block = Math.floor(from / this.#blockTokens); block < blocksEnd; block++) {
      const upTo = Math.min(end, (block + 1) * this.#blockTokens);
      const entry = entryOf(owner, block);
      if (entry === undefined) throw brokenTransfer(index, id, block);
      sent.push({ table, at: { block }, id: held.at(entry), upTo });
    }
  }

  #filled(index: InstanceIndex, { requests }: LengthInstance, { move, at, sources }: Fill): void {
    const [first] = sources;
    if (first === undefined) return;
    let moved = this.#moved.get(moveOf(index, move));
    for (const { sequence } of moved === undefined ? requests.sequences() : [])
      if (holds(sequence.table, first)) moved = { table: sequence.table, blocks: [] };
    if (moved === undefined) throw brokenTransfer(index, `move ${move}`, first);
    moved.blocks.splice(at, sources.length, ...sources);
    this.#moved.set(moveOf(index, move), moved);
  }

  #stopped(move: string): void {
    this.#moved.delete(move);
    this.#lent.stop(move);
  }

  /** Throws when the step that begins computes blocks that may still be read. */
  #checkComputed(index: InstanceIndex, { inFlight }: LengthInstance): void {
    for (const [key, sent] of this.#sent) {
      const { from, to, id } = partsOf(key);
      const running = from === index ? inFlight.find((each) => each.id === id) : undefined;
      if (running === undefined) continue;
      const end = Math.max(this.#host.streams.tokensSent(from, to, id), running.sequence.computed);
      const written = sent.find(({ upTo }) => upTo > end);
      if (written !== undefined) throw brokenTransfer(index, id, written.id);
    }
  }

  /** Blocks from `fromBlock` on are not read any more. */
  #truncate(key: string, fromBlock: number): void {
    const kept = this.#sent.get(key)?.filter(({ at }) => 'block' in at && at.block < fromBlock);
    if (kept !== undefined) this.#sent.set(key, kept);
  }

  /** The instance has failed, and its transfers have ended. */
  reset(index: InstanceIndex): void {
    for (const key of [...this.#sent.keys()]) if (partsOf(key).from === index) this.#sent.delete(key);
    for (const key of [...this.#moved.keys()]) if (key.startsWith(moveOf(index, ''))) this.#moved.delete(key);
    this.#lent.reset(moveOf(index, ''));
  }

  check(): void {
    const { instances, network, streams } = this.#host;
    for (const { kind, from, to, name } of network.transfers) {
      if (kind === 'prefix' && !instances[from].components.prefixes.sends.has(to, name))
        throw brokenTransfer(from, name);
      if (kind === 'borrow') this.#checkMoved(from, name);
      if (kind === 'borrow' || kind === 'settle') this.#checkLent(name);
      if (kind !== 'handoff') continue;
      const key = keyOf(kind, from, to, name);
      const sentTokens = streams.tokensSent(from, to, name);
      const sent = this.#sent.get(key)?.filter(({ upTo }) => upTo > sentTokens) ?? [];
      this.#sent.set(key, sent);
      checkOwned(from, name, instances[from], sent);
    }
  }

  #checkMoved(from: InstanceIndex, name: string): void {
    const moved = this.#moved.get(name);
    for (const block of moved?.blocks ?? [])
      if (moved !== undefined && !holds(moved.table, block)) throw brokenTransfer(from, name, block);
  }

  #checkLent(name: string): void {
    const debtor = debtorOf(name);
    // Creditors count incarnations from 1.
    const incarnation = this.#host.incarnationOf(debtor) + 1;
    const changed = this.#lent.changedBlock(name, debtor, incarnation, this.#host.instances);
    if (changed !== undefined)
      throw new Error(
        `Transfers broken: block ${changed.at} that instance ${changed.creditor} lent to ${debtor} is under way as ${name}, and is returned or reused`,
      );
  }
}

function checkOwned(from: InstanceIndex, name: string, instance: LengthInstance, sent: readonly SentBlock[]): void {
  if (sent.length === 0) return;
  const owner = ownerOf(instance, sent[0].table);
  for (const { table, at, id } of sent) {
    if ('slots' in at) {
      if (table.slots !== at.slots || at.slots.pages[0] !== id) throw brokenTransfer(from, name);
      continue;
    }
    const { blocks } = table.groups[0];
    const entry = 'entry' in at ? at.entry : entryOf(owner, at.block);
    if (entry === undefined || entry >= blocks.length || blocks.at(entry) !== id) throw brokenTransfer(from, name, id);
  }
}

/** The name of a copy of lent blocks. */
function moveOf(debtor: InstanceIndex, move: number | ''): string {
  return `lent ${debtor} ${move}`;
}

function debtorOf(move: string): InstanceIndex {
  return Number(move.split(' ')[1]);
}

function holds({ groups: [{ blocks }] }: BlockTableView, block: number): boolean {
  for (let i = 0; i < blocks.length; i++) if (blocks.at(i) === block) return true;
  return false;
}

function keyOf(kind: ByteKind, from: InstanceIndex, to: InstanceIndex, name: string): string {
  return `${kind} ${from} ${to} ${name}`;
}

function partsOf(key: string): { readonly from: InstanceIndex; readonly to: InstanceIndex; readonly id: string } {
  const [, from, to, ...id] = key.split(' ');
  return { from: Number(from), to: Number(to), id: id.join(' ') };
}

function ownerOf({ requests }: LengthInstance, table: BlockTableView): Owner {
  for (const { sequence } of requests.sequences()) if (sequence.table === table) return sequence;
  return { table, remoteBlocks: 0, remoteFrom: 0 };
}

/** The entry of a block in its owner's table; undefined: the table does not have it. */
function entryOf({ table, remoteBlocks, remoteFrom }: Owner, block: number): number | undefined {
  const { first } = table.groups[0];
  if (remoteBlocks === 0) return block >= first ? block - first : undefined;
  if (block < remoteFrom) return block;
  return block < remoteFrom + remoteBlocks ? undefined : block - remoteBlocks;
}

function brokenTransfer(from: InstanceIndex, name: string, block?: number): Error {
  const what = block === undefined ? 'blocks' : `block ${block}`;
  return new Error(
    `Transfers broken: ${what} of instance ${from} may still be read for ${name}, and is free, reused or computed again`,
  );
}
