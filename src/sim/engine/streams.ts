// What instances stream to each other, over the network: whom its ends are told, and of what.

import type { StepCostModel } from '../../core/cost/roofline.ts';
import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { Activations } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { BlockTableView } from '../../core/protocol/kv-events.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import { type LayerRange, layersOf } from '../../core/protocol/step-shape.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { Departed, Network } from '../network/network.ts';
import { HandOffProgress } from './hand-off-progress.ts';

type Effect = InstanceEffect<undefined, LengthRequest>;
type Event = LengthEvent;

type BytesPerToken = Pick<StepCostModel, 'kvBytesPerToken' | 'activationBytesPerToken' | 'layers'>;

interface Delivery {
  /** It arrives as a message does; what `loadBytes` lie in host memory for it is loaded before it is told. */
  readonly post: (from: InstanceIndex, to: InstanceIndex, event: Event, loadBytes?: number) => void;
  /** Does it want to know when a prefix begins to come? */
  readonly startsAhead: (instance: InstanceIndex) => boolean;
  /** Where it happened, at once. */
  readonly tell: (instance: InstanceIndex, event: Event) => void;
  /** Of lent blocks: nothing that is known here. */
  readonly left: (departed: Departed) => void;
}

export class Streams {
  readonly #network: Network;
  readonly #bytesPerToken: readonly BytesPerToken[];
  readonly #delivery: Delivery;
  readonly #blockTokens: number | undefined;
  /** Prompts on their way, by sender and request. */
  readonly #handOffs = new Map<string, HandOffProgress>();
  /** Chunks whose activations are on their way, by the names of their streams. */
  readonly #passed = new Map<string, { readonly id: string } & Activations>();
  /** Blocks that are there when a prefix has arrived, by receiver and request. */
  readonly #prefixBlocks = new Map<string, number>();

  /** @param bytesPerToken (instances) @param blockTokens undefined: nobody asks what is read */
  constructor(
    network: Network,
    bytesPerToken: readonly BytesPerToken[],
    blockTokens: number | undefined,
    delivery: Delivery,
  ) {
    this.#blockTokens = blockTokens;
    this.#network = network;
    this.#bytesPerToken = bytesPerToken;
    this.#delivery = delivery;
  }

  /** @param stepEndsUs when the step that computes them ends */
  handOff(nowUs: number, from: InstanceIndex, effect: Extract<Effect, { kind: 'stream' }>, stepEndsUs: number): void {
    const { id, to, step, held, range, table } = effect;
    const last = held !== undefined;
    const end = effect.from + effect.tokens;
    const handOff = this.#handOffs.get(`${from} ${id}`) ?? new HandOffProgress(from, to, id);
    this.#handOffs.set(`${from} ${id}`, handOff);
    handOff.held = held ?? nothingHeld;
    const begin = handOff.beginOf(effect.from, end);
    if (begin === end && !last) return;
    const bytes = this.#bytesOf(from, end - begin, range);
    // A step that comes to nothing takes back what it was to compute, and not what leaves with it once more.
    if (begin < effect.from) handOff.add(effect.from, bytes, this.#rowsOf(table, begin, effect.from));
    handOff.add(end, begin < effect.from ? 0 : bytes, this.#rowsOf(table, begin, end));
    const untilUs = step === undefined ? nowUs : stepEndsUs;
    this.#network.stream(nowUs, { from, to, name: id, kind: 'handoff' }, { bytes, untilUs, last });
  }

  /** Of a prompt on its way: the keys and values of so many leading tokens have left. */
  leftTo(nowUs: number, from: InstanceIndex, to: InstanceIndex, id: string): number {
    const bytes = this.#network.leftBy(nowUs, { from, to, name: id, kind: 'handoff' });
    return this.#handOffs.get(`${from} ${id}`)?.leftBy(bytes) ?? 0;
  }

  /** Of the page table: where tokens `from..end` of a prompt are; undefined: nobody asks. */
  #rowsOf({ groups: [{ first, blocks }] }: BlockTableView, from: number, end: number): ReadonlySet<number> | undefined {
    if (this.#blockTokens === undefined) return undefined;
    const rows = new Set<number>();
    for (let block = Math.floor(from / this.#blockTokens); block * this.#blockTokens < end; block++)
      rows.add(blocks.at(block - first));
    return rows;
  }

  /** May a prompt that leaves an instance still be read from one of these rows of its page table? */
  reads(nowUs: number, instance: InstanceIndex, rows: readonly number[]): boolean {
    for (const handOff of this.#handOffs.values())
      if (handOff.from === instance && handOff.reads(this.#network.leftBy(nowUs, handOff), rows)) return true;
    return false;
  }

  #halt(nowUs: number, at: InstanceIndex, { id, to, from }: Extract<Effect, { kind: 'haltStream' }>): void {
    const bytes = this.#network.stop(nowUs, { from: at, to, name: id, kind: 'handoff' });
    this.#handOffs.get(`${at} ${id}`)?.halt(bytes, from);
  }

  carry(
    nowUs: number,
    from: InstanceIndex,
    effect: Extract<Effect, { kind: 'pass' | 'streamPrefix' | 'stopStream' | 'haltStream' }>,
  ): void {
    if (effect.kind === 'pass') this.#pass(nowUs, from, effect);
    else if (effect.kind === 'streamPrefix') this.#prefix(nowUs, from, effect);
    else if (effect.kind === 'haltStream') this.#halt(nowUs, from, effect);
    else this.#stop(nowUs, from, effect);
  }

  /** What a range of the layers made of a chunk. */
  #pass(nowUs: number, from: InstanceIndex, { id, to, chunk }: Extract<Effect, { kind: 'pass' }>): void {
    const name = `${chunk.tokens} ${id}`;
    this.#passed.set(`${from} ${name}`, { id, ...chunk });
    const bytes = (chunk.tokens - chunk.from) * this.#bytesPerToken[from].activationBytesPerToken;
    this.#network.stream(nowUs, { from, to, name, kind: 'activations' }, { bytes, untilUs: nowUs, last: true });
  }

  #prefix(nowUs: number, from: InstanceIndex, effect: Extract<Effect, { kind: 'streamPrefix' }>): void {
    const { id, to, tokens, blocks, range } = effect;
    this.#prefixBlocks.set(`${to} ${id}`, blocks);
    const bytes = this.#bytesOf(from, tokens, range);
    this.#network.stream(nowUs, { from, to, name: id, kind: 'prefix' }, { bytes, untilUs: nowUs, last: true });
    if (range === undefined && this.#delivery.startsAhead(to))
      this.#delivery.post(from, to, { kind: 'arriving', id, source: from, to: blocks });
  }

  /** Keys and values of so many tokens, of some layers or all. */
  #bytesOf(from: InstanceIndex, tokens: number, range: LayerRange | undefined): number {
    const { kvBytesPerToken, layers } = this.#bytesPerToken[from];
    const share = range === undefined ? 1 : layersOf(layers, range) / layers;
    return Math.ceil(tokens * kvBytesPerToken * share);
  }

  #stop(nowUs: number, from: InstanceIndex, { id, to, of }: Extract<Effect, { kind: 'stopStream' }>): void {
    this.#network.stop(nowUs, { from, to, name: id, kind: of });
    if (of === 'handoff') this.#handOffs.delete(`${from} ${id}`);
    else this.#prefixBlocks.delete(`${to} ${id}`);
  }

  /** Ends flows between such instances, lent blocks aside; who is there still hears of it. */
  break(nowUs: number, isBroken: (from: InstanceIndex, to: InstanceIndex) => boolean): void {
    const broken = [...this.#network.transfers].filter(
      ({ kind, from, to }) => kind !== 'borrow' && kind !== 'settle' && isBroken(from, to),
    );
    for (const { from, to, name, kind } of broken) {
      if (kind === 'activations') {
        const id = this.#passed.get(`${from} ${name}`)?.id ?? name;
        this.#network.stop(nowUs, { from, to, name, kind });
        this.#passed.delete(`${from} ${name}`);
        for (const end of [from, to]) this.#delivery.tell(end, { kind: 'streamBroken', id, to, passes: true });
        continue;
      }
      const of = kind === 'prefix' ? 'prefix' : 'handoff';
      this.#stop(nowUs, from, { kind: 'stopStream', id: name, to, of });
      if (of === 'handoff') this.#delivery.tell(from, { kind: 'streamBroken', id: name, to });
      else {
        this.#delivery.tell(to, { kind: 'loaded', id: name, source: from, to: 0 });
        this.#delivery.tell(from, { kind: 'prefixSent', id: name, to });
      }
    }
  }

  /** What has left by now. */
  due(nowUs: number): void {
    for (;;) {
      const departed = this.#network.due(nowUs);
      if (departed === undefined) return;
      if (departed.kind === 'borrow' || departed.kind === 'settle') this.#delivery.left(departed);
      else this.#left(departed);
    }
  }

  #left({ from, to, name: id, kind, bytes }: Departed): void {
    if (kind === 'prefix') {
      const blocks = this.#prefixBlocks.get(`${to} ${id}`) ?? 0;
      this.#prefixBlocks.delete(`${to} ${id}`);
      this.#delivery.post(from, to, { kind: 'loaded', id, source: from, to: blocks });
      this.#delivery.tell(from, { kind: 'prefixSent', id, to });
      return;
    }
    if (kind === 'activations') {
      const passed = this.#passed.get(`${from} ${id}`);
      this.#passed.delete(`${from} ${id}`);
      if (passed !== undefined) this.#delivery.post(from, to, { kind: 'activations', ...passed });
      return;
    }
    const { held } = this.#handOffs.get(`${from} ${id}`) ?? { held: nothingHeld };
    this.#handOffs.delete(`${from} ${id}`);
    this.#delivery.post(from, to, { kind: 'landed', from, id, held }, bytes);
  }
}

const nothingHeld: readonly GenerationEvent[] = [];
