// A fake driver for prefixes and tiers of instances with fake engines: copies pages one by one, in any order of events.
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent, LoadSource, PeerMessage } from '../../../src/core/protocol/events.ts';
import type { PendingBlocks } from '../../../src/core/transfer/prefix-fetch/prefix-loads.ts';
import { FakeEngine } from '../scheduler/fake-engine.ts';

const layers = 2;

interface ReceiveBuffer {
  readonly at: number;
  readonly pages: Int32Array;
  readonly ahead: boolean;
  closed: boolean;
}

/** Pages in transit to a receive buffer, or read from SSD. */
interface Stream {
  readonly at: number;
  readonly id: string;
  readonly source: LoadSource;
  readonly blocks: number;
  readonly receiveBuffer: Pick<ReceiveBuffer, 'pages' | 'closed'>;
  readonly engine: FakeEngine;
  /** (blocks, layers) */
  readonly sources: Int32Array;
  /** Pages copied, including those for unneeded slots. */
  done: number;
}

interface Pages {
  readonly from: Int32Array;
  readonly to: Int32Array;
}

interface Write {
  readonly at: number;
  readonly pages: Pages;
}

type Deliver = (from: number, to: number, event: InstanceEvent) => void;

export class FakePrefixDriver {
  readonly #engines: readonly FakeEngine[];
  readonly #ssds: readonly FakeEngine[];
  readonly #deliver: Deliver;
  readonly #receiveBuffers = new Map<string, ReceiveBuffer>();
  /** By source, requester and request. */
  readonly #fetchBuffers = new Map<string, ReceiveBuffer>();
  readonly #streams = new Map<string, Stream>();
  readonly #writes: Write[] = [];
  /** Streams that have arrived completely. */
  readonly #arrived = new Set<string>();
  readonly #failed = new Set<number>();
  /** By instance: host memory loads that precede the next step. */
  readonly #loads = new Map<number, Pages>();
  /** By instance: blocks that the running step computes, for host memory. */
  readonly #stores = new Map<number, Pages>();
  /** Requests that started ahead of a prefix that arrived in time. */
  arrivedAhead = 0;
  /** Requests that started ahead of a prefix that did not. */
  missedAhead = 0;
  /** Pages loaded from host memory. */
  loadedPages = 0;

  /** @param deliver delivers an event to the second instance, from the first */
  constructor(engines: readonly FakeEngine[], ssdBlocks: number, deliver: Deliver) {
    this.#engines = engines;
    this.#ssds = engines.map(() => new FakeEngine(ssdBlocks * layers, []));
    this.#deliver = deliver;
  }

  /** An instance is about to receive the event. */
  onEvent(at: number, event: InstanceEvent): void {
    if (event.kind === 'peer' && event.message.kind === 'prefixMissing') this.#close(at, event.message.id);
  }

  apply(at: number, effect: InstanceEffect): void {
    switch (effect.kind) {
      case 'send':
        if (effect.message.kind === 'fetch') this.#fetch(at, effect.to, effect.message);
        else this.#deliver(at, effect.to, { kind: 'peer', from: at, message: effect.message });
        break;
      case 'expectPrefix': {
        const ahead = effect.ahead !== undefined;
        this.#receiveBuffers.set(`${at} ${effect.id}`, { at, pages: effect.pages, ahead, closed: false });
        break;
      }
      case 'closePrefix':
        this.#close(at, effect.id);
        break;
      case 'streamPrefix':
        this.#stream(at, effect);
        break;
      case 'stopStream':
        this.#streams.delete(`${effect.to} ${effect.id} ${at}`);
        break;
      default:
        this.#applyToTiers(at, effect);
    }
  }

  #applyToTiers(at: number, effect: InstanceEffect): void {
    switch (effect.kind) {
      case 'copyPages':
        this.#copy(at, effect);
        break;
      case 'loadPages':
        this.runLoads(at);
        this.#loads.set(at, effect);
        break;
      case 'storePages':
        this.#stores.set(at, effect);
        break;
      case 'readSsd':
        this.#read(at, effect);
        break;
      case 'stopRead':
        this.#streams.delete(`${at} ${effect.id} ssd`);
        this.#arrived.delete(`${at} ${effect.id} ssd`);
        break;
      case 'writeSsd':
        for (const { slot, page } of effect.what ?? [])
          this.#writes.push({ at, pages: { from: pagesOf(page), to: pagesOf(slot * layers) } });
        break;
    }
  }

  #fetch(at: number, from: number, message: Extract<PeerMessage, { kind: 'fetch' }>): void {
    const { id } = message;
    if (this.#failed.has(from)) this.#deliver(at, at, { kind: 'peer', from, message: { kind: 'prefixMissing', id } });
    else this.#deliver(at, from, { kind: 'peer', from: at, message });
    const receiveBuffer = this.#receiveBuffers.get(`${at} ${id}`);
    if (receiveBuffer !== undefined) this.#fetchBuffers.set(`${from} ${at} ${id}`, receiveBuffer);
  }

  #close(at: number, id: string): void {
    const receiveBuffer = this.#receiveBuffers.get(`${at} ${id}`);
    if (receiveBuffer !== undefined) receiveBuffer.closed = true;
    this.#receiveBuffers.delete(`${at} ${id}`);
  }

  #stream(from: number, { id, to, blocks, pages }: Extract<InstanceEffect, { kind: 'streamPrefix' }>): void {
    this.runLoads(from);
    const receiveBuffer = this.#fetchBuffers.get(`${from} ${to} ${id}`);
    const engine = this.#engines[from];
    if (receiveBuffer === undefined || pages === undefined || engine === undefined) return;
    const stream = { at: to, id, source: from, blocks, receiveBuffer, engine, sources: pages, done: 0 };
    this.#streams.set(`${to} ${id} ${from}`, stream);
    if (receiveBuffer.ahead) this.#deliver(from, to, { kind: 'arriving', id, source: from, to: blocks });
  }

  #read(at: number, { id, what = [], to, pages }: Extract<InstanceEffect, { kind: 'readSsd' }>): void {
    const engine = this.#ssds[at];
    if (engine === undefined || what.length === 0) {
      this.#arrived.add(`${at} ${id} ssd`);
      this.#deliver(at, at, { kind: 'loaded', id, source: 'ssd', to });
      return;
    }
    const sources = Int32Array.from(what.flatMap(({ slot }) => [...pagesOf(slot * layers)]));
    const targets = pages ?? Int32Array.from(what.flatMap(({ page }) => [...pagesOf(page)]));
    const receiveBuffer = { pages: targets, closed: false };
    this.#streams.set(`${at} ${id} ssd`, {
      at,
      id,
      source: 'ssd',
      blocks: to,
      receiveBuffer,
      engine,
      sources,
      done: 0,
    });
  }

  #copy(at: number, { from, to }: Pages): void {
    const engine = this.#engines[at];
    if (engine !== undefined) for (const [i, page] of from.entries()) engine.copy(to[i] ?? -1, engine, page);
  }

  /** Runs the pending loads, before another read of their pages or the end of the step. */
  runLoads(at: number): void {
    const pages = this.#loads.get(at);
    this.#loads.delete(at);
    if (pages === undefined) return;
    this.#copy(at, pages);
    this.loadedPages += pages.from.length;
  }

  /** The running step has ended: what it computed is copied to host memory. */
  runStores(at: number): void {
    const pages = this.#stores.get(at);
    this.#stores.delete(at);
    if (pages !== undefined) this.#copy(at, pages);
  }

  /** Possible next events. */
  options(): readonly (() => void)[] {
    const first = new Map(this.#writes.map((write) => [write.at, write] as const).reverse());
    return [
      ...[...this.#streams].map(
        ([name, stream]) =>
          () =>
            this.#advance(name, stream),
      ),
      ...[...first.values()].map((write) => () => this.#writeSsd(write)),
    ];
  }

  #writeSsd(write: Write): void {
    const { at, pages } = write;
    this.#writes.splice(this.#writes.indexOf(write), 1);
    const [ssd, engine] = [this.#ssds[at], this.#engines[at]];
    if (engine !== undefined) for (const [i, page] of pages.from.entries()) ssd?.copy(pages.to[i] ?? -1, engine, page);
    this.#deliver(at, at, { kind: 'ssdWritten', blocks: 1 });
  }

  /** Copies one more page. */
  #advance(name: string, stream: Stream): void {
    const { at, id, source, blocks, receiveBuffer, engine, sources } = stream;
    const target = receiveBuffer.pages[stream.done];
    if (!receiveBuffer.closed && target !== undefined)
      this.#engines[at]?.copy(target, engine, sources[stream.done] ?? -1);
    if (++stream.done < sources.length) return;
    this.#streams.delete(name);
    if (source !== 'ssd') this.#deliver(at, source, { kind: 'prefixSent', id, to: at });
    if (receiveBuffer.closed) return;
    this.#arrived.add(name);
    if (source !== 'ssd') this.#close(at, id);
    this.#deliver(source === 'ssd' ? at : source, at, { kind: 'loaded', id, source, to: blocks });
  }

  /** The places, in the plan of an ending step, of requests with blocks that have not arrived. @param patient the step waits for all blocks that will arrive */
  missing(at: number, pending: readonly PendingBlocks[], patient: boolean): ReadonlySet<number> {
    const missing = new Set<number>();
    for (const { place, id, sources } of pending) {
      const arrived = sources?.every((source) => this.#hasArrived(`${at} ${id} ${source}`, patient)) === true;
      if (arrived) this.arrivedAhead++;
      else {
        missing.add(place);
        this.missedAhead++;
      }
    }
    return missing;
  }

  #hasArrived(name: string, patient: boolean): boolean {
    const stream = this.#streams.get(name);
    if (patient && stream !== undefined) while (this.#streams.has(name)) this.#advance(name, stream);
    return this.#arrived.has(name);
  }

  /** The instance has failed: its sends and its fetches end. */
  instanceFailed(failed: number): void {
    this.#failed.add(failed);
    for (const [name, { at, id, source }] of [...this.#streams]) {
      if (at !== failed && source !== failed) continue;
      this.#streams.delete(name);
      if (at === failed && source !== 'ssd')
        this.#deliver(source, source, { kind: 'peer', from: failed, message: { kind: 'cancelPrefix', id } });
    }
    for (const [name, receiveBuffer] of [...this.#fetchBuffers]) {
      const [source, at, id = ''] = name.split(' ');
      if (Number(source) !== failed || receiveBuffer.closed) continue;
      this.#close(Number(at), id);
      this.#deliver(Number(at), Number(at), { kind: 'loaded', id, source: failed, to: 0 });
    }
  }
}

function pagesOf(first: number): Int32Array {
  return Int32Array.from({ length: layers }, (_, layer) => first + layer);
}
