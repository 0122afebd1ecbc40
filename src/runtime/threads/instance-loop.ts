// The loop of an instance's thread: messages in, machine, step, events out; JavaScript sleeps only when there is nothing to run.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { BorrowerEffect } from '../../core/protocol/lending-effects.ts';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type { GenerationEvent, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { Engine } from '../../engine/engine.ts';
import type { LiveLending } from '../lending/live-lending.ts';
import { isOfStage, type PipelineRunner, type StageEffect } from '../pipeline/pipeline-runner.ts';
import type { LiveHandOffs, PeerWire } from '../transfer/live-hand-offs.ts';
import { type HandOffEffect, handOver } from '../transfer/transfer-effects.ts';
import { Alarm, nowUs } from './alarm.ts';
import { awaitedKeys } from './awaited-keys.ts';
import type { LiveTiers } from './live-tiers.ts';
import { StepInterrupt } from './step-interrupt.ts';
import type { StepTracer } from './step-tracer.ts';
import type { EventsMessage, KvEventBatch, KvSnapshot, ToInstance } from './thread-protocol.ts';
import { listen, say, type ThreadPlace, type ThreadWires } from './thread-wires.ts';

type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;
/** What some instances have. */
export interface LoopParts {
  /** Undefined where no prompt is handed over. */
  readonly handOffs?: LiveHandOffs | undefined;
  /** Undefined where no group computes prompts. */
  readonly stages?: PipelineRunner | undefined;
  /** Undefined where what leaves the pool is gone. */
  readonly tiers?: LiveTiers | undefined;
  /** Undefined where steps are not recorded. */
  readonly tracer?: StepTracer | undefined;
  /** Undefined where nothing is lent. */
  readonly lending?: LiveLending | undefined;
}

export class InstanceLoop {
  readonly #machine: TokenInstance;
  readonly #engine: Pick<Engine, 'run'>;
  readonly #place: ThreadPlace;
  readonly #words: StepInterrupt;
  readonly #log: (message: string) => void;
  readonly #handOffs: LiveHandOffs | undefined;
  readonly #stages: PipelineRunner | undefined;
  readonly #tiers: LiveTiers | undefined;
  readonly #tracer: StepTracer | undefined;
  readonly #lending: LiveLending | undefined;
  #prefilled: RequestId[] = [];
  #letGo: [RequestId, string][] = [];
  #pins: [PinId, PinState][] = [];
  #events: [RequestId, GenerationEvent][] = [];
  #journals: KvEventBatch[] = [];
  #blocks: KvSnapshot | undefined;
  #next: RunStep | undefined;
  /** Something changed that the gateway has not been told. */
  #changed = false;
  #closed = false;
  #isAtWork = false;
  readonly #alarm = new Alarm(() => this.wake());

  /** @param abort of StepWords */
  constructor(
    machine: TokenInstance,
    engine: Pick<Engine, 'run'>,
    place: ThreadPlace,
    abort: Int32Array,
    log: (message: string) => void,
    { handOffs, stages, tiers, tracer, lending }: LoopParts = {},
  ) {
    this.#machine = machine;
    this.#engine = engine;
    this.#place = place;
    this.#words = new StepInterrupt(abort);
    this.#log = log;
    this.#handOffs = handOffs;
    this.#stages = stages;
    this.#tiers = tiers;
    this.#tracer = tracer;
    this.#lending = lending;
  }

  /** Serves from now on; runs until `close`. */
  start(): void {
    const { address, incarnation } = this.#place;
    this.#listen('order', [address, incarnation], (message) => this.#take(message));
    if (this.#handOffs !== undefined) {
      this.#listen('peer', [address, '*'], (wire, [, from]) => this.#hear(Number(from), wire));
      this.#listen('gone', ['*', '*'], (_, [from]) => this.#hear(Number(from), { kind: 'gone' }));
    }
    if (this.#lending !== undefined) this.#lend(this.#lending, address);
  }

  #lend(lending: LiveLending, address: string): void {
    this.#listen('lender', [address, '*'], (wire, [, from]) => {
      const event = lending.hear(Number(from), wire);
      if (event !== undefined) this.#hearLender(lending, event);
    });
    this.#listen('office', [address], (news) => this.#hearLender(lending, news));
    this.#listen('room', ['*'], (room, [from]) => {
      if (from !== address) lending.greeted(Number(from), room);
    });
    lending.greet();
  }

  #hearLender(lending: LiveLending, event: InstanceEvent): void {
    if (event.kind === 'lending') lending.count(event.envelope);
    this.#feed(event);
  }

  #listen<K extends keyof ThreadWires>(
    kind: K,
    words: readonly (string | number)[],
    hear: (wire: ThreadWires[K], words: readonly string[]) => void,
  ): void {
    listen(this.#place.bus, kind, words, (wire, said) => {
      if (this.#closed) return;
      hear(wire, said);
      // Else it has asked for what came, and goes on.
      if (!this.#isAtWork) this.#work();
    });
  }

  /** Pages have landed, or it is time: looks for it, if the loop sleeps. */
  wake(): void {
    if (!this.#closed) this.#work();
  }

  snapshot(): InstanceSnapshot {
    const snapshot = this.#machine.snapshot();
    const { tiers } = snapshot;
    const { borrower } = this.#machine;
    return {
      ...snapshot,
      ...(borrower && { lending: this.#lending?.snapshot(borrower) }),
      ...(this.#handOffs && { sent: this.#handOffs.counts, links: this.#handOffs.links }),
      ...(this.#stages?.chunks.length && { stageChunks: this.#stages.chunks, rowLinks: this.#stages.links }),
      ...(tiers && { tiers: { ...tiers, moved: this.#tiers?.moved } }),
      ...(snapshot.store && { store: this.#tiers?.withBytes(snapshot.store) }),
    };
  }

  get #nextUs(): number {
    const never = Number.POSITIVE_INFINITY;
    const parts = [this.#machine, this.#handOffs, this.#stages, this.#machine.borrower, this.#lending];
    return Math.min(...parts.map((part) => part?.nextUs ?? never));
  }

  #work(): void {
    this.#isAtWork = true;
    for (;;) {
      // Before the bus is read: a cancel sent earlier is in there, one sent later stops the next step.
      this.#words.hears();
      this.#drain();
      if (nowUs() >= this.#nextUs) this.#feed({ kind: 'wake' });
      this.#post();
      this.#handOffs?.tellHeld();
      const step = this.#next;
      if (step === undefined || this.#closed) break;
      this.#run(step);
    }
    this.#isAtWork = false;
    this.#tiers?.settle();
    this.#alarm.set(this.#closed ? Number.POSITIVE_INFINITY : this.#nextUs);
  }

  /** What came while a step ran waits on the bus, not in the event loop. */
  #drain(): void {
    this.#place.bus.drain();
    if (this.#closed) return;
    for (const part of [this.#handOffs, this.#stages, this.#lending])
      for (const event of part?.news(nowUs()) ?? []) this.#feed(event);
    // What one brings may ask for more, some of which has ended at once.
    for (let ended = this.#tiers?.events(); ended !== undefined && ended.length > 0; ended = this.#tiers?.events())
      for (const event of ended) this.#feed(event);
  }

  #hear(from: InstanceIndex, wire: PeerWire): void {
    if (wire.kind === 'gone') this.#stages?.lost(from);
    const events = isOfStage(wire) ? this.#stages?.hear(from, wire) : this.#handOffs?.hear(from, wire);
    for (const event of events ?? []) this.#feed(event);
  }

  #take(message: ToInstance): void {
    switch (message.kind) {
      case 'traces':
        if (this.#tracer !== undefined) this.#tracer.on = message.on;
        break;
      case 'close':
        this.#close();
        break;
      default:
        this.#feed(message);
    }
  }

  #close(): void {
    this.#closed = true;
    void this.#place.bus.close();
  }

  #run(step: RunStep): void {
    this.#next = undefined;
    this.#words.begins({ jobs: step.background, waits: (step.range?.index ?? 0) > 0 });
    this.#tracer?.begin(this.#machine);
    this.#tiers?.stepBegins();
    const startedUs = nowUs();
    const ended = this.#execute(step);
    const endedUs = nowUs();
    this.#lending?.ran(endedUs, endedUs - startedUs);
    this.#tiers?.stepEnded();
    this.#tracer?.end(ended.kind !== 'stepDone');
    this.#words.ended();
    this.#handOffs?.ran(step.step);
    // Cancels first, or an aborted step would be planned again with those who left.
    this.#drain();
    this.#feed(ended);
  }

  #execute(run: RunStep): InstanceEvent {
    const { step, plan, range } = run;
    try {
      const outcome = range ? this.#runStage(run) : this.#engine.run(this.#waiting(plan), this.#words.polled);
      return outcome.kind === 'done'
        ? { kind: 'stepDone', step, result: outcome.result }
        : { kind: 'stepAborted', step };
    } catch (error) {
      return { kind: 'stepFailed', step, message: error instanceof Error ? error.message : String(error) };
    }
  }

  /** Prefixes that have not come yet are waited for layer by layer. */
  #waiting(plan: RunStep['plan']): RunStep['plan'] {
    const awaited = this.#machine.arriving(nowUs());
    if (awaited.length === 0) return plan;
    return { ...plan, arriving: awaitedKeys(awaited, this.#tiers, this.#handOffs?.prefixes) };
  }

  #runStage(run: RunStep): ReturnType<Engine['run']> {
    const [chunk] = this.#machine.inFlight;
    if (this.#stages === undefined || chunk === undefined) throw new Error('no group computes prompts here');
    return this.#stages.run(run, chunk.id, this.#words.polled);
  }

  #feed(event: InstanceEvent): void {
    this.#changed = true;
    this.#tracer?.hears(event);
    for (const effect of this.#machine.step(nowUs(), event)) {
      // A request often ends by itself while its cancel, or a peer's word of it, is under way: nothing is wrong.
      if (effect.kind === 'ignored' && mayBeLate(event)) continue;
      if (isLending(effect)) this.#lending?.carryOut(effect);
      else this.#carryOut(effect);
    }
    this.#stages?.sweep(this.#machine);
  }

  #carryOut(effect: Exclude<InstanceEffect, BorrowerEffect>): void {
    switch (effect.kind) {
      case 'emit':
        this.#events.push([effect.id, effect.event]);
        break;
      case 'runStep':
        this.#next = effect;
        break;
      case 'abortStep':
        this.#words.stop();
        break;
      case 'journal':
        this.#journals.push(copyOf(effect.journal));
        break;
      case 'snapshot':
        this.#blocks = effect.snapshot;
        break;
      case 'endRun':
      case 'report':
        // Every run is one step long here; a thread that ends says so, and nobody waits for reports.
        break;
      case 'ignored':
      case 'fault':
        this.#log(effect.message);
        break;
      case 'prefilled':
        this.#prefilled.push(effect.id);
        break;
      case 'released':
        this.#letGo.push([effect.id, effect.why]);
        break;
      case 'send':
      case 'stream':
      case 'stopStream':
      case 'haltStream':
      case 'openLanding':
      case 'closeLanding':
      case 'expectPrefix':
      case 'closePrefix':
      case 'streamPrefix':
        this.#handOver(effect);
        break;
      case 'copyPages':
      case 'loadPages':
      case 'readSsd':
      case 'stopRead':
      case 'writeSsd':
      case 'eraseSsd':
        this.#tiers?.carryOut(effect);
        break;
      case 'pinUpdated':
        this.#pins.push([effect.id, effect.state]);
        break;
      case 'pass':
      case 'copyPrefix':
      case 'expectRows':
        this.#stage(effect);
        break;
    }
  }

  /** What is copied may be on its way from host memory. */
  #stage(effect: StageEffect): void {
    if (effect.kind === 'copyPrefix') this.#tiers?.settle();
    this.#stages?.carryOut(effect);
  }

  #handOver(effect: HandOffEffect): void {
    const handOffs = this.#handOffs;
    if (handOffs === undefined) throw new Error(`Cannot carry out ${effect.kind}: there is no other instance`);
    if (effect.kind === 'stream' || effect.kind === 'streamPrefix') this.#tiers?.settle();
    this.#tracer?.carriesOut(effect);
    handOver(handOffs, effect, this.#machine.pools);
  }

  /** One message for all that a turn brought; without events only before the thread sleeps. */
  #post(): void {
    const news =
      this.#events.length + this.#prefilled.length + this.#letGo.length + this.#pins.length > 0 ||
      (this.#changed && this.#next === undefined);
    if (!news || this.#closed) return;
    this.#changed = false;
    const message: EventsMessage = {
      kind: 'events',
      events: this.#events,
      snapshot: this.snapshot(),
      prefilled: this.#prefilled,
      letGo: this.#letGo,
      pins: this.#pins,
      steps: this.#tracer?.take() ?? [],
      journals: this.#journals,
      blocks: this.#blocks,
    };
    const { bus, address, incarnation } = this.#place;
    say(bus, 'said', [address, incarnation], message);
    this.#events = [];
    this.#prefilled = [];
    this.#letGo = [];
    this.#pins = [];
    this.#journals = [];
    this.#blocks = undefined;
  }
}

const lendings: ReadonlySet<string> = new Set([
  'lending',
  'moveBlocks',
  'fillBlocks',
  'copyHome',
  'stopMove',
  'lendBlocks',
  'takeBackBlocks',
]);

function isLending(effect: InstanceEffect): effect is BorrowerEffect {
  return lendings.has(effect.kind);
}

function mayBeLate({ kind }: InstanceEvent): boolean {
  return kind === 'cancel' || kind === 'peer' || kind === 'streamBroken' || kind === 'activations' || kind === 'coming';
}

/** Its arrays are the machine's, used again for the next one. */
function copyOf({ incarnation, number, changes, words, stored }: KvEventBatch): KvEventBatch {
  const width = words.length / stored.length;
  return { incarnation, number, changes, words: words.slice(0, changes * width), stored: stored.slice(0, changes) };
}
