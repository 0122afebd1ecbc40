// The loop of an instance's thread: receives messages, steps the state machine, runs engine steps and publishes outputs; it sleeps only when idle.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { KvEventBatch, KvSnapshot } from '../../core/protocol/kv-events.ts';
import type { BorrowerEffect } from '../../core/protocol/lending-effects.ts';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type { GenerationEvent, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { Engine } from '../../engine/engine.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { LiveAttentionWorkers } from '../attention-workers/live-attention-workers.ts';
import type { GrammarMatchers } from '../grammars/grammar-matchers.ts';
import type { LiveLending } from '../lending/live-lending.ts';
import { isActivationWire, type PipelineEffect, type PipelineRunner } from '../pipeline/pipeline-runner.ts';
import type { HandOffEffect, LiveHandOffs, PeerWire } from '../transfer/live-hand-offs.ts';
import { Alarm, nowUs } from './alarm.ts';
import { arrivingKeys } from './arriving-keys.ts';
import type { LiveTiers, TierEffect } from './live-tiers.ts';
import type { PagesAhead } from './pages-ahead.ts';
import { StepInterrupt } from './step-interrupt.ts';
import { StepProgress } from './step-progress.ts';
import type { StepTracer } from './step-tracer.ts';
import { publishTo, subscribeTo, type ThreadEndpoint, type ThreadSubjects } from './thread-bus.ts';
import type { OutputsMessage, ToInstance } from './thread-protocol.ts';

/** Snapshots beside tokens alone are sent at most this often. */
const snapshotUs = 20_000;

type PartEffect = HandOffEffect | PipelineEffect | TierEffect;
type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;

/** Drivers of the instance's optional components. */
export interface LoopParts {
  /** Undefined if prompts and prefixes never move between instances. */
  readonly handOffs?: LiveHandOffs | undefined;
  /** Undefined if no group computes prompts. */
  readonly pipeline?: PipelineRunner | undefined;
  /** Undefined if there is neither host memory nor SSD below the pool. */
  readonly tiers?: LiveTiers | undefined;
  /** Undefined if steps are not recorded. */
  readonly tracer?: StepTracer | undefined;
  /** Undefined if no memory is lent. */
  readonly lending?: LiveLending | undefined;
  /** Undefined if the pages lie at the instance itself. */
  readonly attentionWorkers?: LiveAttentionWorkers | undefined;
  /** Undefined if pages are touched at their first use. */
  readonly pagesAhead?: PagesAhead | undefined;
  /** Undefined if the model has no vocabulary for grammars. */
  readonly grammars?: GrammarMatchers | undefined;
}

export class InstanceLoop {
  readonly #machine: TokenInstance;
  readonly #engine: Pick<Engine, 'run'>;
  readonly #endpoint: ThreadEndpoint;
  readonly #interrupt: StepInterrupt;
  readonly #progress: StepProgress;
  readonly #log: (message: string) => void;
  readonly #handOffs: LiveHandOffs | undefined;
  readonly #pipeline: PipelineRunner | undefined;
  readonly #tiers: LiveTiers | undefined;
  readonly #tracer: StepTracer | undefined;
  readonly #lending: LiveLending | undefined;
  readonly #attentionWorkers: LiveAttentionWorkers | undefined;
  readonly #pagesAhead: PagesAhead | undefined;
  readonly #grammars: GrammarMatchers | undefined;
  /** Runs when the loop sleeps and no message has arrived. */
  #idleWork: NodeJS.Immediate | undefined;
  #events: [RequestId, GenerationEvent][] = [];
  #prefilled: RequestId[] = [];
  #released: [RequestId, string][] = [];
  #pins: [PinId, PinState][] = [];
  #kvEvents: KvEventBatch[] = [];
  #kvSnapshot: KvSnapshot | undefined;
  #plannedStep: RunStep | undefined;
  #snapshotSentUs = Number.NEGATIVE_INFINITY;
  /** The state has changed since the last report. */
  #changed = false;
  /** Changes of the pipeline's links that were reported. */
  #linkChanges = 0;
  #closed = false;
  #isRunning = false;
  readonly #alarm = new Alarm(() => this.wake());

  /** @param interruptFlags the shared memory of the thread's StepInterrupt */
  constructor(
    machine: TokenInstance,
    engine: Pick<Engine, 'run'>,
    endpoint: ThreadEndpoint,
    interruptFlags: Int32Array,
    log: (message: string) => void,
    { handOffs, pipeline, tiers, tracer, lending, attentionWorkers, pagesAhead, grammars }: LoopParts = {},
  ) {
    this.#machine = machine;
    this.#engine = engine;
    this.#endpoint = endpoint;
    this.#interrupt = new StepInterrupt(interruptFlags);
    this.#progress = new StepProgress(interruptFlags);
    this.#log = log;
    this.#handOffs = handOffs;
    this.#pipeline = pipeline;
    this.#tiers = tiers;
    this.#tracer = tracer;
    this.#lending = lending;
    this.#attentionWorkers = attentionWorkers;
    this.#pagesAhead = pagesAhead;
    this.#grammars = grammars;
  }

  /** Serves until a `close` command. */
  start(): void {
    const { address, incarnation } = this.#endpoint;
    this.#subscribe('command', [address, incarnation], (command) => this.#onCommand(command));
    if (this.#handOffs !== undefined) {
      this.#subscribe('peer', [address, '*'], (wire, [, from]) => this.#onPeerMessage(Number(from), wire));
      this.#subscribe('gone', ['*', '*'], (_, [from]) => this.#onPeerMessage(Number(from), { kind: 'gone' }));
    }
    if (this.#lending !== undefined) this.#startLending(this.#lending, address);
    this.#touchPagesWhenIdle();
  }

  #startLending(lending: LiveLending, address: string): void {
    this.#subscribe('lending', [address, '*'], (wire, [, from]) => {
      const event = lending.onMessage(Number(from), wire);
      if (event !== undefined) this.#onLendingEvent(lending, event);
    });
    this.#subscribe('managerOutput', [address], (event) => this.#onLendingEvent(lending, event));
    this.#subscribe('attentionServer', ['*'], (server, [from]) => {
      if (from !== address) lending.onServerAnnounced(Number(from), server);
    });
    lending.announceServer();
  }

  #onLendingEvent(lending: LiveLending, event: InstanceEvent): void {
    if (event.kind === 'lending') lending.onEnvelope(event.envelope);
    this.#feed(event);
  }

  #subscribe<K extends keyof ThreadSubjects>(
    kind: K,
    words: readonly (string | number)[],
    handler: (message: ThreadSubjects[K], words: readonly string[]) => void,
  ): void {
    subscribeTo(this.#endpoint.bus, kind, words, (message, subject) => {
      if (this.#closed) return;
      this.#progress.work(() => {
        handler(message, subject);
        // A running loop has drained the bus itself, and continues.
        if (!this.#isRunning) this.#loop();
      });
    });
  }

  /** Runs the loop if it sleeps: pages have been received, or a deadline has passed. */
  wake(): void {
    if (!this.#closed) this.#progress.work(() => this.#loop());
  }

  snapshot(): InstanceSnapshot {
    const snapshot = this.#machine.snapshot();
    const { tiers, attentionWorkers } = snapshot;
    const { borrower } = this.#machine.components;
    return {
      ...snapshot,
      ...(borrower && { lending: this.#lending?.snapshot(borrower) }),
      ...(this.#handOffs && { sent: this.#handOffs.counts, links: this.#handOffs.links }),
      ...(this.#pipeline?.chunks.length && {
        pipelineChunks: this.#pipeline.chunks,
        activationLinks: this.#pipeline.links,
      }),
      ...(tiers && { tiers: { ...tiers, moved: this.#tiers?.counts } }),
      ...(attentionWorkers && { attentionWorkers: this.#attentionWorkers?.withCounts(attentionWorkers) }),
      ...(snapshot.store && { store: this.#tiers?.withBytes(snapshot.store) }),
    };
  }

  get #nextUs(): number {
    const never = Number.POSITIVE_INFINITY;
    const parts = [this.#machine, this.#handOffs, this.#pipeline, this.#lending, this.#attentionWorkers, this.#tiers];
    const lendingUs = this.#machine.components.borrower?.tickUs ?? never;
    return Math.min(lendingUs, ...parts.map((part) => part?.nextUs ?? never));
  }

  #loop(): void {
    this.#isRunning = true;
    try {
      this.#runSteps();
      this.#tiers?.finishLoads();
    } finally {
      this.#isRunning = false;
      this.#alarm.set(this.#closed ? Number.POSITIVE_INFINITY : this.#nextUs);
    }
    this.#touchPagesWhenIdle();
  }

  /** Returns when no step is planned. */
  #runSteps(): void {
    for (;;) {
      this.#progress.advance();
      // Precedes reading the bus: a cancel sent before is read now, one sent after interrupts the next step.
      this.#interrupt.acknowledge();
      this.#receive();
      if (nowUs() >= this.#nextUs) this.#feed({ kind: 'wake' });
      this.#report();
      this.#handOffs?.sendFirstEvents();
      const step = this.#plannedStep;
      if (step === undefined || this.#closed) break;
      this.#runStep(step);
    }
  }

  #touchPagesWhenIdle(): void {
    if (this.#pagesAhead === undefined || this.#closed || this.#idleWork !== undefined) return;
    this.#idleWork = setImmediate(() => {
      this.#idleWork = undefined;
      if (this.#pagesAhead?.advance(this.#machine.unusedPages) === true) this.#touchPagesWhenIdle();
    });
    // Does not keep a closing thread alive.
    this.#idleWork.unref();
  }

  /** Messages that arrived during a step wait on the bus, not in the event loop. */
  #receive(): void {
    this.#endpoint.bus.drain();
    if (this.#closed) return;
    for (const part of [this.#handOffs, this.#pipeline, this.#lending, this.#attentionWorkers])
      for (const event of part?.poll(nowUs()) ?? []) this.#feed(event);
    for (const event of this.#grammars?.poll() ?? []) this.#feed(event);
    // The completion of one read may start another that completes at once.
    for (let done = this.#tiers?.poll(); done !== undefined && done.length > 0; done = this.#tiers?.poll())
      for (const event of done) this.#feed(event);
  }

  #onPeerMessage(from: InstanceIndex, wire: PeerWire): void {
    if (wire.kind === 'gone') this.#pipeline?.onPeerLost(from);
    if (wire.kind === 'ended') this.#pipeline?.onPeerEnded(from);
    if (isActivationWire(wire)) this.#pipeline?.onMessage(from, wire);
    else for (const event of this.#handOffs?.onMessage(from, wire) ?? []) this.#feed(event);
  }

  #onCommand(command: ToInstance): void {
    switch (command.kind) {
      case 'traces':
        if (this.#tracer !== undefined) this.#tracer.enabled = command.on;
        break;
      case 'close':
        this.#close();
        break;
      default:
        this.#feed(command);
    }
  }

  #close(): void {
    this.#closed = true;
    void this.#grammars?.close();
    void this.#endpoint.bus.close();
  }

  #runStep(step: RunStep): void {
    this.#plannedStep = undefined;
    this.#interrupt.stepBegins({ background: step.background, waiting: (step.range?.index ?? 0) > 0 });
    this.#tracer?.begin(this.#machine);
    this.#tiers?.stepBegins();
    this.#lending?.onStepBegins();
    this.#progress.stepBegins(step.predictedUs);
    const startedUs = nowUs();
    const result = this.#execute(step);
    const endedUs = nowUs();
    this.#progress.stepEnded();
    const { borrower } = this.#machine.components;
    if (borrower !== undefined) this.#lending?.onStepRan(endedUs, endedUs - startedUs, borrower.rmanager.creditor);
    this.#tiers?.stepEnded();
    this.#interrupt.stepEnded();
    this.#handOffs?.onStepRan(step.step);
    // Cancels come first: an aborted step must not be planned again with cancelled requests.
    this.#receive();
    this.#feed(result);
  }

  #execute(run: RunStep): InstanceEvent {
    const { step, range } = run;
    try {
      const placed = this.#lending?.ways.placed(run, (shape) => this.#machine.predictUs(shape)) ?? run.plan;
      const masked = this.#grammars?.masked(placed);
      const plan = masked?.step ?? placed;
      const outcome = range
        ? this.#runPipelineStep({ ...run, plan })
        : this.#engine.run(this.#withTransfers(plan), this.#interrupt.polled);
      if (outcome.kind !== 'done') return { kind: 'stepAborted', step };
      const { unmasked } = masked ?? {};
      this.#grammars?.sampled(plan, outcome.result.tokens, unmasked);
      return {
        kind: 'stepDone',
        step,
        result: { ...outcome.result, ...(unmasked && { unmaskedSequences: unmasked }) },
      };
    } catch (error) {
      return { kind: 'stepFailed', step, message: error instanceof Error ? error.message : String(error) };
    }
  }

  /** The step waits layer by layer for prefixes that are still being received. */
  #withTransfers(plan: RunStep['plan']): RunStep['plan'] {
    const pending = this.#machine.components.prefixes.pendingBlocks(nowUs());
    if (pending.length === 0) return plan;
    return { ...plan, arriving: arrivingKeys(pending, this.#tiers, this.#handOffs?.prefixes) };
  }

  #runPipelineStep(run: RunStep): ReturnType<Engine['run']> {
    const [chunk] = this.#machine.inFlight;
    if (this.#pipeline === undefined || chunk === undefined)
      throw new Error('Cannot run a pipeline step: the instance is in no group');
    return this.#pipeline.run(run, chunk.id, this.#interrupt.polled);
  }

  #feed(event: InstanceEvent): void {
    this.#changed = true;
    this.#tracer?.onEvent(event);
    const atUs = nowUs();
    if (endsStep(event)) this.#tracer?.end(atUs, event.kind !== 'stepDone');
    for (const effect of this.#machine.step(atUs, event)) {
      // A request often ends while its cancel or a peer's message about it is in flight: not worth a log line.
      if (effect.kind === 'ignored' && mayBeLate(event)) continue;
      if (effect.kind === 'runStep') this.#tracer?.planned(atUs);
      if (isLending(effect)) this.#lending?.carryOut(effect);
      else this.#carryOut(effect);
    }
    this.#pipeline?.sweep(this.#machine);
  }

  #carryOut(effect: Exclude<InstanceEffect, BorrowerEffect>): void {
    switch (effect.kind) {
      case 'emit':
        this.#events.push([effect.id, effect.event]);
        break;
      case 'runStep':
        this.#plannedStep = effect;
        break;
      case 'abortStep':
        this.#interrupt.stop();
        break;
      case 'kvEvents':
        this.#kvEvents.push(copyOf(effect.batch));
        break;
      case 'snapshot':
        this.#kvSnapshot = effect.snapshot;
        break;
      case 'endStepRun':
      case 'report':
      case 'outgrows':
      case 'migrated':
        // Every run has one step here, the end of a thread is observed directly, and only the simulator has standby instances.
        break;
      case 'ignored':
      case 'fault':
        this.#log(effect.message);
        break;
      case 'compileGrammar':
        if (this.#grammars === undefined)
          throw new Error('Cannot compile a grammar: the instance has no threads for them');
        this.#grammars.compile(effect.id, effect.grammar);
        break;
      case 'releaseGrammar':
        this.#grammars?.release(effect.id);
        break;
      case 'prefilled':
        this.#prefilled.push(effect.id);
        break;
      case 'released':
        this.#released.push([effect.id, effect.why]);
        break;
      case 'pinUpdated':
        this.#pins.push([effect.id, effect.state]);
        break;
      default:
        this.#carryOutPart(effect);
    }
  }

  #carryOutPart(effect: PartEffect): void {
    switch (effect.kind) {
      case 'send':
      case 'stream':
      case 'stopStream':
      case 'haltStream':
      case 'openReceiveBuffer':
      case 'closeReceiveBuffer':
      case 'expectPrefix':
      case 'closePrefix':
      case 'streamPrefix':
        this.#carryOutHandOff(effect);
        break;
      case 'copyPages':
      case 'loadPages':
      case 'storePages':
      case 'readSsd':
      case 'stopRead':
      case 'writeSsd':
      case 'eraseSsd':
        this.#tiers?.carryOut(effect);
        break;
      case 'sendActivations':
      case 'copyPrefix':
      case 'expectActivations':
        this.#carryOutPipeline(effect);
        break;
      default:
        assertNever(effect);
    }
  }

  /** Copied pages may still be loading from host memory. */
  #carryOutPipeline(effect: PipelineEffect): void {
    if (effect.kind === 'copyPrefix') this.#tiers?.finishLoads();
    this.#pipeline?.carryOut(effect);
  }

  #carryOutHandOff(effect: HandOffEffect): void {
    const handOffs = this.#handOffs;
    if (handOffs === undefined) throw new Error(`Cannot carry out ${effect.kind}: there is no other instance`);
    if (effect.kind === 'stream' || effect.kind === 'streamPrefix') this.#tiers?.finishLoads();
    this.#tracer?.onEffect(effect);
    handOffs.carryOut(effect, this.#machine.pools);
  }

  /** Publishes one message for each iteration with outputs, and one before the thread sleeps if the state has changed. */
  #report(): void {
    const linkChanges = this.#pipeline?.linkChanges ?? 0;
    this.#changed ||= linkChanges !== this.#linkChanges;
    const hasOutputs =
      this.#events.length + this.#prefilled.length + this.#released.length + this.#pins.length > 0 ||
      (this.#changed && this.#plannedStep === undefined);
    if (!hasOutputs || this.#closed) return;
    this.#changed = false;
    this.#linkChanges = linkChanges;
    const message: OutputsMessage = {
      kind: 'events',
      events: this.#events,
      snapshot: this.#dueSnapshot(),
      prefilled: this.#prefilled,
      released: this.#released,
      pins: this.#pins,
      steps: this.#tracer?.take() ?? [],
      kvEvents: this.#kvEvents,
      kvSnapshot: this.#kvSnapshot,
    };
    const { bus, address, incarnation } = this.#endpoint;
    publishTo(bus, 'output', [address, incarnation], message);
    this.#events = [];
    this.#prefilled = [];
    this.#released = [];
    this.#pins = [];
    this.#kvEvents = [];
    this.#kvSnapshot = undefined;
  }

  /** Undefined while decode steps follow one another and the last snapshot is recent: a snapshot takes as long as their tokens. */
  #dueSnapshot(): InstanceSnapshot | undefined {
    const tokensOnly =
      this.#plannedStep !== undefined &&
      this.#prefilled.length + this.#released.length + this.#pins.length + this.#kvEvents.length === 0 &&
      this.#events.every(([, { kind }]) => kind === 'tokens');
    const atUs = nowUs();
    if (tokensOnly && atUs - this.#snapshotSentUs < snapshotUs) return undefined;
    this.#snapshotSentUs = atUs;
    return this.snapshot();
  }
}

const lendingKinds: ReadonlySet<string> = new Set<BorrowerEffect['kind']>([
  'lending',
  'moveBlocks',
  'fillBlocks',
  'copyHome',
  'stopMove',
  'lendBlocks',
  'takeBackBlocks',
]);

function isLending(effect: InstanceEffect): effect is BorrowerEffect {
  return lendingKinds.has(effect.kind);
}

function endsStep({ kind }: InstanceEvent): boolean {
  return kind === 'stepDone' || kind === 'stepAborted' || kind === 'stepFailed';
}

function mayBeLate({ kind }: InstanceEvent): boolean {
  return (
    kind === 'cancel' ||
    kind === 'peer' ||
    kind === 'streamBroken' ||
    kind === 'activations' ||
    kind === 'activationsPending'
  );
}

/** The machine reuses the arrays of its batches. */
function copyOf({ incarnation, number, changes, words, stored }: KvEventBatch): KvEventBatch {
  const width = words.length / stored.length;
  return { incarnation, number, changes, words: words.slice(0, changes * width), stored: stored.slice(0, changes) };
}
