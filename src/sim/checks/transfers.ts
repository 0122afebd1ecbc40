// No block that a transfer under way may still read is free or somebody else's: what leaves an instance is followed from when its machine says so.

import type { LengthEffect, LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { BlockTableView } from '../../core/protocol/kv-events.ts';
import type { ByteKind, Network } from '../network/network.ts';
import { LentCopies } from './lent-copies.ts';

/** One who has blocks in a table. */
interface Owner {
  readonly table: BlockTableView;
  /** Number of its remote blocks, and the first of them. */
  readonly remoteBlocks: number;
  readonly remoteFrom: number;
}

/** A block on its way, of whoever had it when it was put there. */
interface Leaving {
  readonly table: BlockTableView;
  /** Of the owner's blocks; `entry`: of its table, whatever that stands for. */
  readonly at: { readonly block: number } | { readonly entry: number };
  readonly id: number;
  /** Once so many tokens have left, it is read no more. */
  readonly upTo: number;
}

/** Blocks that leave home for a creditor: entries of the table of whose they are. */
interface Moving {
  readonly table: BlockTableView;
  readonly rows: number[];
}

type Fill = Extract<LengthEffect, { kind: 'fillBlocks' }>;
type Stream = Extract<LengthEffect, { kind: 'stream' }>;

/** What has left of a prompt: how many of its leading tokens. */
type LeftTo = (from: InstanceIndex, to: InstanceIndex, id: string) => number;

export class Transfers {
  readonly #blockTokens: number;
  /** By kind, sender, receiver and name: what is on its way. */
  readonly #leaving = new Map<string, Leaving[]>();

  /** By instance and move. */
  readonly #moving = new Map<string, Moving>();

  readonly #lent = new LentCopies();

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  /** An instance wants these carried out. */
  wants(index: InstanceIndex, instance: LengthInstance, effects: readonly LengthEffect[], leftTo: LeftTo): void {
    for (const effect of effects) {
      if (effect.kind === 'runStep') this.#checkComputed(index, instance, leftTo);
      else if (effect.kind === 'fillBlocks') this.#fills(index, instance, effect);
      else if (effect.kind === 'moveBlocks') this.#lent.start(index, instance, moveOf(index, effect.move), effect);
      else if (effect.kind === 'stopMove') this.#stopped(moveOf(index, effect.move));
      else if (effect.kind === 'stream') this.#streams(index, instance, effect);
      else if (effect.kind === 'haltStream')
        this.#cut(keyOf('handoff', index, effect.to, effect.id), Math.floor(effect.from / this.#blockTokens));
      else if (effect.kind === 'stopStream') this.#leaving.delete(keyOf(effect.of, index, effect.to, effect.id));
    }
  }

  #streams(index: InstanceIndex, instance: LengthInstance, { id, to, from, tokens, table, range }: Stream): void {
    const key = keyOf('handoff', index, to, id);
    const leaving = this.#leaving.get(key) ?? [];
    this.#leaving.set(key, leaving);
    const end = from + tokens;
    const held = table.groups[0].blocks;
    if (range !== undefined) {
      // Of a range of the layers every page may be anywhere in what is kept.
      for (let entry = 0; entry < held.length; entry++)
        leaving.push({ table, at: { entry }, id: held.at(entry), upTo: end });
      return;
    }
    const owner = ownerOf(instance, table);
    // Of one that goes on elsewhere in the middle of its output the last token has no keys yet.
    const blocksEnd = Math.min(Math.ceil(end / this.#blockTokens), table.length);
    for (let block = Math.floor(from / this.#blockTokens); block < blocksEnd; block++) {
      const upTo = Math.min(end, (block + 1) * this.#blockTokens);
      const entry = entryOf(owner, block);
      if (entry === undefined) throw broken(index, id, block);
      leaving.push({ table, at: { block }, id: held.at(entry), upTo });
    }
  }

  #fills(index: InstanceIndex, { roster }: LengthInstance, { move, at, sources }: Fill): void {
    const [row] = sources;
    if (row === undefined) return;
    let moving = this.#moving.get(moveOf(index, move));
    for (const { sequence } of moving === undefined ? roster.sequences() : [])
      if (holds(sequence.table, row)) moving = { table: sequence.table, rows: [] };
    if (moving === undefined) throw broken(index, `move ${move}`, row);
    moving.rows.splice(at, sources.length, ...sources);
    this.#moving.set(moveOf(index, move), moving);
  }

  #stopped(move: string): void {
    this.#moving.delete(move);
    this.#lent.stop(move);
  }

  /** A step begins: what may still be read it does not compute. */
  #checkComputed(index: InstanceIndex, { inFlight }: LengthInstance, leftTo: LeftTo): void {
    for (const [key, leaving] of this.#leaving) {
      const { from, to, id } = partsOf(key);
      const served = from === index ? inFlight.find((each) => each.id === id) : undefined;
      if (served === undefined) continue;
      const end = Math.max(leftTo(from, to, id), served.sequence.computed);
      const written = leaving.find(({ upTo }) => upTo > end);
      if (written !== undefined) throw broken(index, id, written.id);
    }
  }

  /** Those from a block on are read no more. */
  #cut(key: string, fromBlock: number): void {
    const kept = this.#leaving.get(key)?.filter(({ at }) => 'block' in at && at.block < fromBlock);
    if (kept !== undefined) this.#leaving.set(key, kept);
  }

  /** The instance starts anew: nothing leaves it any more. */
  gone(index: InstanceIndex): void {
    for (const key of [...this.#leaving.keys()]) if (partsOf(key).from === index) this.#leaving.delete(key);
    for (const key of [...this.#moving.keys()]) if (key.startsWith(moveOf(index, ''))) this.#moving.delete(key);
    this.#lent.gone(moveOf(index, ''));
  }

  /** @param lifeOf which start of an instance it is, from 0 */
  check(
    instances: readonly LengthInstance[],
    network: Network,
    leftTo: LeftTo,
    incarnationOf: (instance: InstanceIndex) => number,
  ): void {
    for (const { kind, from, to, name } of network.transfers) {
      if (kind === 'prefix' && !instances[from].sends(to, name)) throw broken(from, name);
      if (kind === 'borrow') this.#checkMoving(from, name);
      if (kind === 'borrow' || kind === 'settle') this.#checkLent(name, instances, incarnationOf);
      if (kind !== 'handoff') continue;
      const key = keyOf(kind, from, to, name);
      const left = leftTo(from, to, name);
      const leaving = this.#leaving.get(key)?.filter(({ upTo }) => upTo > left) ?? [];
      this.#leaving.set(key, leaving);
      this.#checkOwned(from, name, instances[from], leaving);
    }
  }

  #checkMoving(from: InstanceIndex, name: string): void {
    const moving = this.#moving.get(name);
    for (const row of moving?.rows ?? [])
      if (moving !== undefined && !holds(moving.table, row)) throw broken(from, name, row);
  }

  #checkLent(
    name: string,
    instances: readonly LengthInstance[],
    incarnationOf: (instance: InstanceIndex) => number,
  ): void {
    const debtor = debtorOf(name);
    // Creditors count lives from 1.
    const lost = this.#lent.lost(name, debtor, incarnationOf(debtor) + 1, instances);
    if (lost !== undefined)
      throw new Error(
        `Transfers broken: block ${lost.at} that instance ${lost.creditor} lent to ${debtor} is under way as ${name}, and is given back or another's`,
      );
  }

  #checkOwned(from: InstanceIndex, name: string, instance: LengthInstance, leaving: readonly Leaving[]): void {
    if (leaving.length === 0) return;
    const owner = ownerOf(instance, leaving[0].table);
    for (const { table, at, id } of leaving) {
      const { blocks } = table.groups[0];
      const entry = 'entry' in at ? at.entry : entryOf(owner, at.block);
      if (entry === undefined || entry >= blocks.length || blocks.at(entry) !== id) throw broken(from, name, id);
    }
  }
}

/** As copies of lent blocks are called. */
function moveOf(debtor: InstanceIndex, move: number | ''): string {
  return `lent ${debtor} ${move}`;
}

function debtorOf(move: string): InstanceIndex {
  return Number(move.split(' ')[1]);
}

function holds({ groups: [{ blocks }] }: BlockTableView, row: number): boolean {
  for (let i = 0; i < blocks.length; i++) if (blocks.at(i) === row) return true;
  return false;
}

function keyOf(kind: ByteKind, from: InstanceIndex, to: InstanceIndex, name: string): string {
  return `${kind} ${from} ${to} ${name}`;
}

function partsOf(key: string): { readonly from: InstanceIndex; readonly to: InstanceIndex; readonly id: string } {
  const [, from, to, ...id] = key.split(' ');
  return { from: Number(from), to: Number(to), id: id.join(' ') };
}

function ownerOf({ roster }: LengthInstance, table: BlockTableView): Owner {
  for (const { sequence } of roster.sequences()) if (sequence.table === table) return sequence;
  return { table, remoteBlocks: 0, remoteFrom: 0 };
}

/** Where in its table an owner has a block; undefined: it has not. */
function entryOf({ table, remoteBlocks, remoteFrom }: Owner, block: number): number | undefined {
  const { first } = table.groups[0];
  if (remoteBlocks === 0) return block >= first ? block - first : undefined;
  if (block < remoteFrom) return block;
  return block < remoteFrom + remoteBlocks ? undefined : block - remoteBlocks;
}

function broken(from: InstanceIndex, name: string, block?: number): Error {
  const what = block === undefined ? 'blocks' : `block ${block}`;
  return new Error(
    `Transfers broken: ${what} of instance ${from} may still be read for ${name}, and is not its any more, or is computed again`,
  );
}
