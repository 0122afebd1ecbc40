// The streams between instances over the network: prompts, prefixes, activations and lent blocks, with the events of both ends.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { Activations } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { BlockTableView } from '../../core/protocol/kv-events.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import { type LayerRange, layersOf } from '../../core/protocol/step-shape.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { Departed, Network } from '../network/network.ts';
import type { Timer } from './event-queue.ts';
import { HandOffProgress } from './hand-off-progress.ts';
import type { ClusterHost } from './simulation-config.ts';

type Effect = InstanceEffect<undefined, LengthRequest>;

interface StreamHost extends ClusterHost {
  readonly network: Network;
  readonly executors: readonly { readonly endsUs: number }[];
  readonly delivery: {
    /** Sends an event to another instance, which first loads `loadBytes` from host memory. */
    sendToPeer(from: InstanceIndex, to: InstanceIndex, event: LengthEvent, loadBytes?: number): void;
  };
  readonly lending: { departed(departed: Departed): void } | undefined;
}

export class Streams {
  readonly #host: StreamHost;
  readonly #timer: Timer;
  #wakeUs = Number.POSITIVE_INFINITY;
  /** Undefined: the blocks that a stream reads are not tracked. */
  readonly #blockTokens: number | undefined;
  /** Prompts under way, by sender and request. */
  readonly #handOffs = new Map<string, HandOffProgress>();
  /** Chunks with activations under way, by the names of their streams. */
  readonly #activations = new Map<string, { readonly id: string } & Activations>();
  /** Blocks that the receiver holds once a prefix has arrived, by receiver and request. */
  readonly #prefixBlocks = new Map<string, number>();

  constructor(host: StreamHost) {
    this.#host = host;
    this.#timer = host.queue.timer(() => this.#due());
    this.#blockTokens = host.config.lending && host.config.blockTokens;
  }

  /** Recomputes the rates of the network once all changes of one time are done. */
  refresh(): void {
    const { network, config } = this.#host;
    network.refresh();
    if (config.checking) network.check();
    this.#schedule();
  }

  /** One event of the queue stands for all flows of the network. */
  #schedule(): void {
    const { nextUs } = this.#host.network;
    if (nextUs >= this.#wakeUs) return;
    this.#wakeUs = nextUs;
    this.#timer.schedule(nextUs);
  }

  #due(): void {
    const { network, queue } = this.#host;
    // The timer was rescheduled to an earlier time.
    if (this.#wakeUs !== queue.nowUs) return;
    this.#wakeUs = Number.POSITIVE_INFINITY;
    for (let departed = network.due(queue.nowUs); departed !== undefined; departed = network.due(queue.nowUs)) {
      if (departed.kind === 'borrow' || departed.kind === 'settle') this.#host.lending?.departed(departed);
      else this.#departed(departed);
    }
    this.#schedule();
  }

  perform(
    from: InstanceIndex,
    effect: Extract<Effect, { kind: 'stream' | 'sendActivations' | 'streamPrefix' | 'stopStream' | 'haltStream' }>,
  ): void {
    switch (effect.kind) {
      case 'stream':
        this.#streamPrompt(from, effect);
        break;
      case 'sendActivations':
        this.#streamActivations(from, effect);
        break;
      case 'streamPrefix':
        this.#streamPrefix(from, effect);
        break;
      case 'stopStream':
        this.#stop(from, effect);
        break;
      case 'haltStream':
        this.#halt(from, effect);
        break;
      default:
        assertNever(effect);
    }
  }

  #streamPrompt(from: InstanceIndex, effect: Extract<Effect, { kind: 'stream' }>): void {
    const { network, queue, executors } = this.#host;
    const { id, to, step, firstEvents, range, table } = effect;
    const last = firstEvents !== undefined;
    const end = effect.from + effect.tokens;
    const handOff = this.#handOffs.get(`${from} ${id}`) ?? new HandOffProgress(from, to, id);
    this.#handOffs.set(`${from} ${id}`, handOff);
    handOff.firstEvents = firstEvents ?? noEvents;
    const begin = handOff.beginOf(effect.from, end);
    if (begin === end && !last) return;
    const bytes = this.#promptBytes(from, table, end - begin, range);
    // After a halt earlier tokens leave again with this step. If the step is aborted, its own tokens do not leave, but these do.
    if (begin < effect.from) handOff.add(effect.from, bytes, this.#blocksOf(table, begin, effect.from));
    handOff.add(end, begin < effect.from ? 0 : bytes, this.#blocksOf(table, begin, end));
    const untilUs = step === undefined ? queue.nowUs : executors[from].endsUs;
    network.stream(queue.nowUs, { from, to, name: id, kind: 'handoff' }, { bytes, untilUs, last });
  }

  /** Number of leading tokens of a prompt under way that have left. */
  tokensSent(from: InstanceIndex, to: InstanceIndex, id: string): number {
    const { network, queue } = this.#host;
    const bytes = network.streamSentBy(queue.nowUs, { from, to, name: id, kind: 'handoff' });
    return this.#handOffs.get(`${from} ${id}`)?.tokensSentBy(bytes) ?? 0;
  }

  /** Blocks that hold tokens `from..end` of a prompt. */
  #blocksOf(
    { groups: [{ first, blocks }] }: BlockTableView,
    from: number,
    end: number,
  ): ReadonlySet<number> | undefined {
    if (this.#blockTokens === undefined) return undefined;
    const held = new Set<number>();
    for (let block = Math.floor(from / this.#blockTokens); block * this.#blockTokens < end; block++)
      held.add(blocks.at(block - first));
    return held;
  }

  /** True if a hand-off from the instance may still read one of these blocks. */
  reads(instance: InstanceIndex, blocks: readonly number[]): boolean {
    const { network, queue } = this.#host;
    for (const handOff of this.#handOffs.values())
      if (handOff.from === instance && handOff.reads(network.streamSentBy(queue.nowUs, handOff), blocks)) return true;
    return false;
  }

  #halt(at: InstanceIndex, { id, to, from }: Extract<Effect, { kind: 'haltStream' }>): void {
    const { network, queue } = this.#host;
    const bytes = network.stop(queue.nowUs, { from: at, to, name: id, kind: 'handoff' });
    this.#handOffs.get(`${at} ${id}`)?.halt(bytes, from);
  }

  /** The activations of a chunk, from one member of a group to the next. */
  #streamActivations(from: InstanceIndex, { id, to, chunk }: Extract<Effect, { kind: 'sendActivations' }>): void {
    const { network, queue, config } = this.#host;
    const name = `${chunk.tokens} ${id}`;
    this.#activations.set(`${from} ${name}`, { id, ...chunk });
    const bytes = (chunk.tokens - chunk.from) * config.instances[from].machine.cost.activationBytesPerToken;
    const untilUs = queue.nowUs;
    network.stream(queue.nowUs, { from, to, name, kind: 'activations' }, { bytes, untilUs, last: true });
  }

  #streamPrefix(from: InstanceIndex, effect: Extract<Effect, { kind: 'streamPrefix' }>): void {
    const { network, queue, config, delivery } = this.#host;
    const { id, to, tokens, blocks, range } = effect;
    this.#prefixBlocks.set(`${to} ${id}`, blocks);
    const bytes = this.#bytesOf(from, tokens, range);
    const untilUs = queue.nowUs;
    network.stream(queue.nowUs, { from, to, name: id, kind: 'prefix' }, { bytes, untilUs, last: true });
    if (range === undefined && config.instances[to].machine.aheadOfUse === true)
      delivery.sendToPeer(from, to, { kind: 'arriving', id, source: from, to: blocks });
  }

  /** Bytes of a prompt, or of some of its tokens. One with kept tokens leaves at once, with the slots of its sparse layers. */
  #promptBytes(from: InstanceIndex, { slots }: BlockTableView, tokens: number, range: LayerRange | undefined): number {
    const { machine } = this.#host.config.instances[from];
    if (slots === undefined || machine.sparsity === undefined) return this.#bytesOf(from, tokens, range);
    const { sparseLayers } = machine.sparsity;
    const fullLayers = sparseLayers.filter((isSparse) => !isSparse).length;
    const slotTokens = (slots.pages.length + slots.states.length) * machine.blockTokens;
    return this.#bytesOf(from, (fullLayers * tokens + slotTokens) / sparseLayers.length, undefined);
  }

  /** Bytes of the keys and values of a number of tokens, of some layers or all. */
  #bytesOf(from: InstanceIndex, tokens: number, range: LayerRange | undefined): number {
    const { kvBytesPerToken, layers } = this.#host.config.instances[from].machine.cost;
    const share = range === undefined ? 1 : layersOf(layers, range) / layers;
    return Math.ceil(tokens * kvBytesPerToken * share);
  }

  #stop(from: InstanceIndex, { id, to, of }: Extract<Effect, { kind: 'stopStream' }>): void {
    const { network, queue } = this.#host;
    network.stop(queue.nowUs, { from, to, name: id, kind: of });
    if (of === 'handoff') this.#handOffs.delete(`${from} ${id}`);
    else this.#prefixBlocks.delete(`${to} ${id}`);
  }

  /** Ends the streams of broken connections, except lent blocks. Ends that are up are notified. */
  break(isBroken: (from: InstanceIndex, to: InstanceIndex) => boolean): void {
    const { network } = this.#host;
    const broken = [...network.transfers].filter(
      ({ kind, from, to }) => kind !== 'borrow' && kind !== 'settle' && isBroken(from, to),
    );
    for (const { from, to, name, kind } of broken) {
      if (kind === 'activations') this.#breakActivations(from, to, name);
      else if (kind === 'prefix') {
        this.#stop(from, { kind: 'stopStream', id: name, to, of: 'prefix' });
        this.#host.deliverToInstance(to, { kind: 'loaded', id: name, source: from, to: 0 });
        this.#host.deliverToInstance(from, { kind: 'prefixSent', id: name, to });
      } else {
        this.#stop(from, { kind: 'stopStream', id: name, to, of: 'handoff' });
        this.#host.deliverToInstance(from, { kind: 'streamBroken', id: name, to });
      }
    }
  }

  #breakActivations(from: InstanceIndex, to: InstanceIndex, name: string): void {
    const { network, queue } = this.#host;
    const id = this.#activations.get(`${from} ${name}`)?.id ?? name;
    network.stop(queue.nowUs, { from, to, name, kind: 'activations' });
    this.#activations.delete(`${from} ${name}`);
    for (const end of [from, to])
      this.#host.deliverToInstance(end, { kind: 'streamBroken', id, to, ofActivations: true });
  }

  #departed({ from, to, name: id, kind, bytes }: Departed): void {
    const { delivery } = this.#host;
    if (kind === 'prefix') {
      const blocks = this.#prefixBlocks.get(`${to} ${id}`) ?? 0;
      this.#prefixBlocks.delete(`${to} ${id}`);
      delivery.sendToPeer(from, to, { kind: 'loaded', id, source: from, to: blocks });
      this.#host.deliverToInstance(from, { kind: 'prefixSent', id, to });
    } else if (kind === 'activations') {
      const activations = this.#activations.get(`${from} ${id}`);
      this.#activations.delete(`${from} ${id}`);
      if (activations !== undefined) delivery.sendToPeer(from, to, { kind: 'activations', ...activations });
    } else {
      const { firstEvents } = this.#handOffs.get(`${from} ${id}`) ?? { firstEvents: noEvents };
      this.#handOffs.delete(`${from} ${id}`);
      delivery.sendToPeer(from, to, { kind: 'promptReceived', from, id, firstEvents }, bytes);
    }
  }
}

const noEvents: readonly GenerationEvent[] = [];
