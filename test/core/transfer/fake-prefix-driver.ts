// What the drivers of instances with fake engines do with prefixes and tiers: pages are copied one by one, in any order of events.
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent, LoadSource, PeerMessage } from '../../../src/core/protocol/events.ts';
import type { AwaitedBlocks } from '../../../src/core/transfer/prefix-fetch/prefix-loads.ts';
import { FakeEngine } from '../scheduler/fake-engine.ts';

const layers = 2;

interface Landing {
  readonly at: number;
  readonly pages: Int32Array;
  readonly ahead: boolean;
  closed: boolean;
}

/** Pages on their way to a landing, or of SSD. */
interface Stream {
  readonly at: number;
  readonly id: string;
  readonly source: LoadSource;
  readonly blocks: number;
  readonly landing: Pick<Landing, 'pages' | 'closed'>;
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

type Tell = (from: number, to: number, event: InstanceEvent) => void;

export class PrefixWires {
  readonly #engines: readonly FakeEngine[];
  readonly #ssds: readonly FakeEngine[];
  readonly #tell: Tell;
  readonly #landings = new Map<string, Landing>();
  /** By source, requester and request. */
  readonly #asked = new Map<string, Landing>();
  readonly #streams = new Map<string, Stream>();
  readonly #writes: Write[] = [];
  /** Streams all of which is where it was to go. */
  readonly #came = new Set<string>();
  readonly #gone = new Set<number>();
  /** (instances): what the next step begins with. */
  readonly #loads = new Map<number, Pages>();
  /** Requests that computed behind what came, and those in vain. */
  behind = 0;
  inVain = 0;
  /** Blocks of host memory that requests computed behind, with or without others that were still coming. */
  loadedPages = 0;

  /** @param tell an event comes to the second, by the first */
  constructor(engines: readonly FakeEngine[], ssdBlocks: number, tell: Tell) {
    this.#engines = engines;
    this.#ssds = engines.map(() => new FakeEngine(ssdBlocks * layers, []));
    this.#tell = tell;
  }

  /** An instance is about to hear of this. */
  hears(at: number, event: InstanceEvent): void {
    if (event.kind === 'peer' && event.message.kind === 'prefixMissing') this.#close(at, event.message.id);
  }

  apply(at: number, effect: InstanceEffect): void {
    switch (effect.kind) {
      case 'send':
        if (effect.message.kind === 'fetch') this.#ask(at, effect.to, effect.message);
        else this.#tell(at, effect.to, { kind: 'peer', from: at, message: effect.message });
        break;
      case 'expectPrefix': {
        const ahead = effect.ahead !== undefined;
        this.#landings.set(`${at} ${effect.id}`, { at, pages: effect.pages, ahead, closed: false });
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
        this.settle(at);
        this.#loads.set(at, effect);
        break;
      case 'readSsd':
        this.#read(at, effect);
        break;
      case 'stopRead':
        this.#streams.delete(`${at} ${effect.id} ssd`);
        this.#came.delete(`${at} ${effect.id} ssd`);
        break;
      case 'writeSsd':
        for (const { slot, page } of effect.what ?? [])
          this.#writes.push({ at, pages: { from: pagesOf(page), to: pagesOf(slot * layers) } });
        break;
    }
  }

  #ask(at: number, from: number, message: Extract<PeerMessage, { kind: 'fetch' }>): void {
    const { id } = message;
    if (this.#gone.has(from)) this.#tell(at, at, { kind: 'peer', from, message: { kind: 'prefixMissing', id } });
    else this.#tell(at, from, { kind: 'peer', from: at, message });
    const landing = this.#landings.get(`${at} ${id}`);
    if (landing !== undefined) this.#asked.set(`${from} ${at} ${id}`, landing);
  }

  #close(at: number, id: string): void {
    const landing = this.#landings.get(`${at} ${id}`);
    if (landing !== undefined) landing.closed = true;
    this.#landings.delete(`${at} ${id}`);
  }

  #stream(from: number, { id, to, blocks, pages }: Extract<InstanceEffect, { kind: 'streamPrefix' }>): void {
    this.settle(from);
    const landing = this.#asked.get(`${from} ${to} ${id}`);
    const engine = this.#engines[from];
    if (landing === undefined || pages === undefined || engine === undefined) return;
    const stream = { at: to, id, source: from, blocks, landing, engine, sources: pages, done: 0 };
    this.#streams.set(`${to} ${id} ${from}`, stream);
    if (landing.ahead) this.#tell(from, to, { kind: 'arriving', id, source: from, to: blocks });
  }

  #read(at: number, { id, what = [], to, pages }: Extract<InstanceEffect, { kind: 'readSsd' }>): void {
    const engine = this.#ssds[at];
    if (engine === undefined || what.length === 0) {
      this.#came.add(`${at} ${id} ssd`);
      this.#tell(at, at, { kind: 'loaded', id, source: 'ssd', to });
      return;
    }
    const sources = Int32Array.from(what.flatMap(({ slot }) => [...pagesOf(slot * layers)]));
    const targets = pages ?? Int32Array.from(what.flatMap(({ page }) => [...pagesOf(page)]));
    const landing = { pages: targets, closed: false };
    this.#streams.set(`${at} ${id} ssd`, { at, id, source: 'ssd', blocks: to, landing, engine, sources, done: 0 });
  }

  #copy(at: number, { from, to }: Pages): void {
    const engine = this.#engines[at];
    if (engine !== undefined) for (const [i, page] of from.entries()) engine.copy(to[i] ?? -1, engine, page);
  }

  /** What is to be loaded there is, before something else reads it, or the step that runs does. */
  settle(at: number): void {
    const pages = this.#loads.get(at);
    this.#loads.delete(at);
    if (pages === undefined) return;
    this.#copy(at, pages);
    this.loadedPages += pages.from.length;
  }

  /** What could happen next. */
  options(): readonly (() => void)[] {
    const first = new Map(this.#writes.map((write) => [write.at, write] as const).reverse());
    return [
      ...[...this.#streams].map(
        ([name, stream]) =>
          () =>
            this.#advance(name, stream),
      ),
      ...[...first.values()].map((write) => () => this.#write(write)),
    ];
  }

  #write(write: Write): void {
    const { at, pages } = write;
    this.#writes.splice(this.#writes.indexOf(write), 1);
    const [ssd, engine] = [this.#ssds[at], this.#engines[at]];
    if (engine !== undefined) for (const [i, page] of pages.from.entries()) ssd?.copy(pages.to[i] ?? -1, engine, page);
    this.#tell(at, at, { kind: 'ssdWritten', blocks: 1 });
  }

  /** One page more. */
  #advance(name: string, stream: Stream): void {
    const { at, id, source, blocks, landing, engine, sources } = stream;
    const target = landing.pages[stream.done];
    if (!landing.closed && target !== undefined) this.#engines[at]?.copy(target, engine, sources[stream.done] ?? -1);
    if (++stream.done < sources.length) return;
    this.#streams.delete(name);
    if (source !== 'ssd') this.#tell(at, source, { kind: 'prefixSent', id, to: at });
    if (landing.closed) return;
    this.#came.add(name);
    if (source !== 'ssd') this.#close(at, id);
    this.#tell(source === 'ssd' ? at : source, at, { kind: 'loaded', id, source, to: blocks });
  }

  /** The places, in the plan of an ending step, of requests with blocks that have not arrived. @param patient the step waits for all blocks that will arrive */
  missing(at: number, awaited: readonly AwaitedBlocks[], patient: boolean): ReadonlySet<number> {
    const missing = new Set<number>();
    for (const { place, id, sources } of awaited) {
      const came = sources?.every((source) => this.#comes(`${at} ${id} ${source}`, patient)) === true;
      if (came) this.behind++;
      else {
        missing.add(place);
        this.inVain++;
      }
    }
    return missing;
  }

  #comes(name: string, patient: boolean): boolean {
    const stream = this.#streams.get(name);
    if (patient && stream !== undefined) while (this.#streams.has(name)) this.#advance(name, stream);
    return this.#came.has(name);
  }

  /** Does a prefix land in one of these pages? */
  landsIn(at: number, pages: ArrayLike<number>): boolean {
    const lands = (into: Int32Array) => Array.from(pages).some((page) => into.includes(page));
    const open = [...this.#landings.values()].filter((landing) => landing.at === at);
    const read = [...this.#streams.values()].filter(({ at: to, source }) => to === at && source === 'ssd');
    return [...open, ...read.map(({ landing }) => landing)].some((landing) => lands(landing.pages));
  }

  /** It is gone, with all that it was to send or to get. */
  lost(gone: number): void {
    this.#gone.add(gone);
    for (const [name, { at, id, source }] of [...this.#streams]) {
      if (at !== gone && source !== gone) continue;
      this.#streams.delete(name);
      if (at === gone && source !== 'ssd')
        this.#tell(source, source, { kind: 'peer', from: gone, message: { kind: 'cancelPrefix', id } });
    }
    for (const [name, landing] of [...this.#asked]) {
      const [source, at, id = ''] = name.split(' ');
      if (Number(source) !== gone || landing.closed) continue;
      this.#close(Number(at), id);
      this.#tell(Number(at), Number(at), { kind: 'loaded', id, source: gone, to: 0 });
    }
  }
}

function pagesOf(first: number): Int32Array {
  return Int32Array.from({ length: layers }, (_, layer) => first + layer);
}
