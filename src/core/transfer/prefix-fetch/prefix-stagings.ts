// Prefixes on SSD that other instances fetch: they are first read into host memory.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import { type PrefixReceiveBuffer, receivePrefix } from '../../kvcache/prefix-transfer.ts';
import type { InstanceIndex, RequestId, SlotId } from '../../protocol/ids.ts';
import type { SsdBlock } from '../../protocol/kv-events.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { PrefixSends, PrefixSlice } from './prefix-sends.ts';

interface Staging {
  readonly buffer: PrefixReceiveBuffer;
  /** Blocks `from..to` of the chain are read. */
  readonly from: number;
  readonly to: number;
  /** The blocks on SSD. */
  readonly blocks: readonly SsdBlock[];
  readonly receiver: InstanceIndex;
  readonly id: RequestId;
  readonly slice: PrefixSlice;
}

export class PrefixStagings {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #sends: PrefixSends;
  /** By the id of the read: receiver and request. */
  readonly #stagings = new Map<string, Staging>();

  constructor(context: InstanceContext<Identified, RunningRequest>, sends: PrefixSends) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#sends = sends;
  }

  /** Starts to read a prefix. False when SSD has no more of it than memory, or host memory is short. */
  begin(to: InstanceIndex, id: RequestId, { chain: wanted, from, range }: PrefixSlice): boolean {
    const { lower } = this.#cache;
    if (lower?.ssd === undefined) return false;
    const name = nameOf(to, id);
    if (this.#stagings.has(name)) return true;
    const inHost = lower.inHost(wanted, from, wanted.blocks);
    const end = lower.inHostOrOnSsd(wanted, inHost, wanted.blocks);
    if (end <= Math.max(inHost, this.#cache.match(wanted, wanted.blocks))) return false;
    const chain = { blocks: end, words: wanted.words };
    const buffer = receivePrefix(this.#cache, chain, inHost, end, this.#context.scheduler);
    if (buffer === undefined) return false;
    const { blocks, to: readTo } = lower.readSsd(chain, inHost, end, buffer);
    const slice = { chain, from, range };
    this.#stagings.set(name, { buffer, from: inHost, to: end, blocks, receiver: to, id, slice });
    this.#context.emit({
      kind: 'readSsd',
      id: name,
      blocks: blocks.length,
      to: readTo,
      ...(lower.moves && { what: blocks }),
    });
    return true;
  }

  /** Blocks before `to` are read: the prefix is sent. False when it is not expected. `bad`: a slot of SSD whose content is corrupt. */
  read(name: string, to: number, bad?: SlotId): boolean {
    const staging = this.#stagings.get(name);
    if (staging === undefined) return false;
    staging.buffer.fill(staging.from, Math.min(to, staging.to), 'ssd');
    this.#close(name, staging, bad);
    this.#sends.send(staging.receiver, staging.id, staging.slice);
    return true;
  }

  /** The receiver no longer needs it. False when it was not being read. */
  stop(to: InstanceIndex, id: RequestId): boolean {
    const name = nameOf(to, id);
    const staging = this.#stagings.get(name);
    if (staging === undefined) return false;
    if (this.#cache.lower?.moves !== undefined) this.#context.emit({ kind: 'stopRead', id: name });
    this.#close(name, staging);
    return true;
  }

  #close(name: string, { buffer, blocks }: Staging, bad?: SlotId): void {
    this.#stagings.delete(name);
    this.#cache.lower?.ssdReadEnded(blocks, bad);
    buffer.close();
  }
}

/** Request ids have no blanks. */
function nameOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}
