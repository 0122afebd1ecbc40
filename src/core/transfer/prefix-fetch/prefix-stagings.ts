// Prefixes that other instances ask for and SSD holds: read into host memory first.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import { type PrefixReceiveBuffer, receivePrefix } from '../../kvcache/prefix-transfer.ts';
import type { InstanceIndex, RequestId, SlotId } from '../../protocol/ids.ts';
import type { SsdBlock } from '../../protocol/kv-events.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { PrefixOrder, PrefixSends } from './prefix-sends.ts';

interface Staging {
  readonly landing: PrefixReceiveBuffer;
  /** Blocks `from..to` of the chain come, these from SSD. */
  readonly from: number;
  readonly to: number;
  readonly blocks: readonly SsdBlock[];
  readonly receiver: InstanceIndex;
  readonly id: RequestId;
  readonly order: PrefixOrder;
}

export class PrefixStagings {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #sends: PrefixSends;
  /** By receiver and request: the name of the read. */
  readonly #stagings = new Map<string, Staging>();

  constructor(context: InstanceContext<Identified, RunningRequest>, sends: PrefixSends) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#sends = sends;
  }

  /** Blocks `from..` of the chain are wanted. False when SSD holds no more of them than memory, or there is no room. */
  begin(to: InstanceIndex, id: RequestId, { chain: wanted, from, range }: PrefixOrder): boolean {
    const { lower } = this.#cache;
    if (lower?.ssd === undefined) return false;
    const name = nameOf(to, id);
    if (this.#stagings.has(name)) return true;
    const here = lower.inHost(wanted, from, wanted.blocks);
    const end = lower.inHostOrOnSsd(wanted, here, wanted.blocks);
    if (end <= Math.max(here, this.#cache.match(wanted, wanted.blocks))) return false;
    const chain = { blocks: end, words: wanted.words };
    const landing = receivePrefix(this.#cache, chain, here, end, this.#context.scheduler);
    if (landing === undefined) return false;
    const { blocks, to: readTo } = lower.readSsd(chain, here, end, landing);
    const order = { chain, from, range };
    this.#stagings.set(name, { landing, from: here, to: end, blocks, receiver: to, id, order });
    this.#context.emit({
      kind: 'readSsd',
      id: name,
      blocks: blocks.length,
      to: readTo,
      ...(lower.moves && { what: blocks }),
    });
    return true;
  }

  /** Read, before block `to`: it leaves. False when it is not expected. `bad`: a slot of SSD that did not hold what it should. */
  read(name: string, to: number, bad?: SlotId): boolean {
    const staging = this.#stagings.get(name);
    if (staging === undefined) return false;
    staging.landing.fill(staging.from, Math.min(to, staging.to), 'ssd');
    this.#close(name, staging, bad);
    this.#sends.send(staging.receiver, staging.id, staging.order);
    return true;
  }

  /** Nobody wants it any more. False when it was not being read. */
  stop(to: InstanceIndex, id: RequestId): boolean {
    const name = nameOf(to, id);
    const staging = this.#stagings.get(name);
    if (staging === undefined) return false;
    if (this.#cache.lower?.moves !== undefined) this.#context.emit({ kind: 'stopRead', id: name });
    this.#close(name, staging);
    return true;
  }

  #close(name: string, { landing, blocks }: Staging, bad?: SlotId): void {
    this.#stagings.delete(name);
    this.#cache.lower?.ssdReadEnded(blocks, bad);
    landing.close();
  }
}

/** No request is called like that: ids have no blanks. */
function nameOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}
