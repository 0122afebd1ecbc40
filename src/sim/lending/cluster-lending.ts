// Lending between the instances of a simulated cluster: carries messages and blocks, wakes machines, and has guests slow their creditors down.
import { GManager } from '../../cluster/gmanager.ts';
import type { BlocksToMove, MoveNumber } from '../../cluster/lending/block-moves.ts';
import type { BorrowerEffect, BorrowingTotals } from '../../cluster/lending/borrower.ts';
import type { Envelope, LendingEffect } from '../../cluster/lending/messages.ts';
import type { RemoteWork } from '../../cluster/lending/remote-work.ts';
import type { LendingTimes } from '../../cluster/lending/times.ts';
import type { LengthInstance, LengthRequest, StepCostModel } from '../../cluster/length-work.ts';
import type { InstanceEvent } from '../../cluster/messages.ts';
import { counterUniform } from '../../util/counter-random.ts';
import { EventHeap } from '../event-heap.ts';
import type { SimulatedExecutor } from '../executor.ts';
import type { Departed, Network } from '../network/network.ts';
import { checkAtRest, checkLoans, type LendingParty } from './checks.ts';
import { Guests } from './guests.ts';

export interface ClusterLendingConfig {
  readonly times: LendingTimes;
  /** Cycles of debts are settled (DGFM). */
  readonly settles: boolean;
  readonly settleBlocksMin: number;
  readonly settleBlocksMax: number;
  readonly seed: number;
  readonly guestPermilleMax: number;
  /** Of one row, over all layers: its query and its partial. */
  readonly queryRowBytes: number;
  readonly layers: number;
}

export interface Debt {
  readonly debtor: number;
  readonly creditor: number;
  readonly blocks: number;
}

export interface LendingCounts {
  loans: number;
  recalls: number;
  refusals: number;
  settlements: number;
  /** Queries that were asked of the gManager. */
  queries: number;
}

/** The cluster that lends; what is told to an instance goes through its driver. */
export interface LendingHost {
  readonly instances: readonly LengthInstance[];
  readonly executors: readonly SimulatedExecutor[];
  readonly network: Network;
  /** An instance hears it at that time. */
  tell(nowUs: number, instance: number, event: Event): void;
}

/** The cluster that lends. */
interface Lenders {
  readonly instances: readonly { readonly machine: { readonly cost: StepCostModel } }[];
  readonly blockTokens: number;
  readonly checking: boolean;
}

type Event = InstanceEvent<LengthRequest, undefined>;
type Post =
  | { readonly kind: 'gmanager'; readonly envelope: Envelope }
  | {
      readonly kind: 'instance';
      readonly to: number;
      readonly event: Event;
      readonly before?: (() => void) | undefined;
    };

/** How long all must have been paid back before nothing is left to happen, in heartbeats. */
const restHeartbeats = 2;
/** A run in which only lending goes on for so long while requests wait is stuck. */
const stuckUs = 120_000_000;
/** Nobody has the turn for longer: all that ran when it began are over long before. */
const turnUsMax = 1_800_000_000;

export class ClusterLending {
  readonly counts: LendingCounts = { loans: 0, recalls: 0, refusals: 0, settlements: 0, queries: 0 };
  readonly guests: Guests;
  readonly #config: ClusterLendingConfig;
  readonly #host: LendingHost;
  readonly #checking: boolean;
  /** (instances) */
  readonly #blockBytes: readonly number[];
  readonly #gmanager: GManager;
  /** Keys: wakes of instances, then of the gManager, then what is on its way. */
  readonly #heap = new EventHeap();
  readonly #wakeUs: Float64Array;
  readonly #posts = new Map<number, Post>();
  #postNumber = 0;
  readonly #moves = new Map<
    string,
    {
      readonly debtor: number;
      readonly move: MoveNumber;
      readonly from: number;
      readonly to: number;
      readonly kind: BlocksToMove['purpose'];
    }
  >();
  readonly #busy: Uint8Array;
  #nowUs = 0;
  #turn: { readonly holder: number | undefined; readonly number: number | undefined; readonly sinceUs: number } = {
    holder: undefined,
    number: undefined,
    sinceUs: 0,
  };
  /** When a step ended last. */
  #aliveUs = 0;
  #over = false;
  /** Since when nothing is lent. */
  #restUs = 0;

  constructor(config: ClusterLendingConfig, cluster: Lenders, host: LendingHost) {
    this.#checking = cluster.checking;
    const costs = cluster.instances.map(({ machine }) => machine.cost);
    this.#blockBytes = costs.map(({ kvBytesPerToken }) => kvBytesPerToken * cluster.blockTokens);
    this.#config = config;
    this.#host = host;
    const { instances, executors, network } = host;
    this.#wakeUs = new Float64Array(instances.length + 1).fill(Number.POSITIVE_INFINITY);
    this.#busy = new Uint8Array(instances.length);
    const { layers, queryRowBytes: rowBytes } = config;
    this.guests = new Guests({
      costs,
      link: (from, to) => ({
        layers,
        rowBytes,
        oneWayUs: network.latencyUs(from, to),
        bytesPerUs: network.bytesPerUs(from, to),
      }),
      guestPermilleMax: config.guestPermilleMax,
      isBusy: (instance) => executors[instance].isRunning,
    });
    this.#gmanager = new GManager({
      epoch: 1,
      times: config.settles ? config.times : { ...config.times, settleUs: Number.MAX_SAFE_INTEGER },
      blocksMin: config.settleBlocksMin,
      blocksMax: config.settleBlocksMax,
      uniform: (counter) => counterUniform(config.seed, 7, counter),
      distance: () => 1,
    });
    for (let i = 0; i <= instances.length; i++) this.#schedule(i);
  }

  /** When the next of its own events is due. */
  get nextUs(): number {
    return this.#heap.nextUs;
  }

  /** When the next thing happens, with what else happens at `mainUs`: nothing but heartbeats once all is paid back. */
  nextBefore(mainUs: number, live: number): number {
    this.#over = mainUs === Number.POSITIVE_INFINITY && this.#isOver(live);
    return this.#over ? mainUs : Math.min(mainUs, this.nextUs);
  }

  /** Is it its turn, before what else happens at `mainUs`? At one time others go first. */
  comesFirst(mainUs: number): boolean {
    return !this.#over && this.nextUs < mainUs;
  }

  /** Carries out the next event: nothing else is due before. */
  advance(): void {
    // Later, when nothing was to happen for a while.
    this.#nowUs = Math.max(this.#nowUs, this.#heap.nextUs);
    const key = this.#heap.nextKey;
    this.#heap.pop();
    const { instances } = this.#host;
    if (key > instances.length) this.#deliver(key - instances.length - 1);
    else {
      this.#wakeUs[key] = Number.POSITIVE_INFINITY;
      if (key === instances.length) {
        if (this.#gmanager.nextUs <= this.#nowUs) this.#perform(this.#gmanager.step(this.#nowUs, { kind: 'tick' }));
        this.#schedule(key);
      } else if (nextUsOf(instances[key]) <= this.#nowUs) this.#host.tell(this.#nowUs, key, { kind: 'wake' });
      else this.#schedule(key);
    }
  }

  /** All that was lent is back, and everybody knows; `live` requests wait for nothing then. */
  #isOver(live: number): boolean {
    const { instances } = this.#host;
    const lent = instances.some(({ borrower }) => borrower !== undefined && isOpen(borrower.totals));
    if (live > 0 && this.#nowUs - this.#aliveUs > stuckUs)
      throw new Error(`Simulation broken: ${live} requests wait for memory: nothing has run since ${this.#aliveUs} us`);
    if (live > 0 || lent) {
      if (lent || live === 0) this.#restUs = this.#nowUs;
      return false;
    }
    return this.#nowUs - this.#restUs > restHeartbeats * this.#config.times.heartbeatUs;
  }

  /** The instance has done a step of its machine, whose effects are carried out. */
  stepped(nowUs: number, instance: number): void {
    this.#nowUs = nowUs;
    this.#schedule(instance);
    if (this.#checking) checkLoans(nowUs, this.#parties);
    const busy = Number(this.#host.executors[instance].isRunning);
    if (busy === this.#busy[instance]) return;
    this.#busy[instance] = busy;
    for (const debtor of this.guests.debtorsOf(instance))
      this.#post(instance, debtor, { kind: 'wake' }, () => this.guests.heard(debtor, instance));
    if (busy === 0) this.#tellNews(instance, []);
  }

  /** Carries out what an instance's borrower wants. */
  perform(nowUs: number, instance: number, effect: BorrowerEffect): void {
    if (effect.kind === 'lending') this.#send(nowUs, effect.envelope);
    else if (effect.kind === 'moveBlocks') this.#move(nowUs, instance, effect);
    else this.#stopMove(nowUs, instance, effect.move);
  }

  #send(nowUs: number, envelope: Envelope): void {
    this.#nowUs = nowUs;
    const { from, to, message } = envelope;
    if (message.kind === 'lend') this.counts.loans++;
    if (message.kind === 'refuse') this.counts.refusals++;
    if (message.kind === 'recall') this.counts.recalls++;
    if (message.kind === 'query') this.counts.queries++;
    if (typeof to === 'number') {
      const event = { kind: 'lending', envelope } as const;
      this.#post(typeof from === 'number' ? from : to, to, event);
    } else this.#put(this.#host.network.latencyUs(from as number, from as number), { kind: 'gmanager', envelope });
  }

  #move(nowUs: number, debtor: number, { move, from, to, blocks, purpose }: BlocksToMove): void {
    this.#nowUs = nowUs;
    const name = `lent ${debtor} ${move}`;
    this.#moves.set(name, { debtor, move, from, to, kind: purpose });
    const bytes = blocks * this.#blockBytes[debtor];
    this.#host.network.stream(nowUs, { from, to, name, kind: purpose }, { bytes, untilUs: nowUs, last: true });
  }

  #stopMove(nowUs: number, debtor: number, move: MoveNumber): void {
    const name = `lent ${debtor} ${move}`;
    const moving = this.#moves.get(name);
    if (moving === undefined) return;
    this.#moves.delete(name);
    this.#host.network.stop(nowUs, { ...moving, name });
  }

  /** The last bytes of a move have left: its debtor hears when they have arrived, from the creditor if they went there. */
  departed(nowUs: number, { name, us }: Departed): void {
    this.#nowUs = nowUs;
    const moving = this.#moves.get(name);
    if (moving === undefined) return;
    this.#moves.delete(name);
    const { debtor, move, to } = moving;
    const event = { kind: 'moved', move } as const;
    this.#put(to === debtor ? us : 2 * us, { kind: 'instance', to: debtor, event });
  }

  /** A step begins, of rows that may see keys at creditors: it waits for those, and their steps take longer. */
  run(nowUs: number, instance: number, effect: Parameters<SimulatedExecutor['run']>[1]): void {
    this.#nowUs = nowUs;
    const { remote } = effect;
    const executor = this.#host.executors[instance];
    executor.run(nowUs, effect, remote === undefined ? undefined : this.guests.part(instance, remote));
    this.#tellNews(instance, remote ?? [], executor.firstStepUs);
  }

  /** So many equal steps have run. */
  ended(nowUs: number, instance: number, event: Event): void {
    this.#aliveUs = nowUs;
    this.#restUs = nowUs;
    const steps = event.kind === 'stepDone' ? (event.stepUs?.length ?? 1) : 0;
    this.guests.ended(instance, steps, this.#config.queryRowBytes);
  }

  #tellNews(debtor: number, remote: readonly RemoteWork[], stepUs = 1): void {
    for (const { creditor, exceedsPermille } of this.guests.began(debtor, remote, stepUs)) {
      this.#post(debtor, creditor, { kind: 'wake' }, () => {
        this.#host.executors[creditor].guestPermille = this.guests.takenPermille(creditor);
      });
      if (exceedsPermille === undefined) continue;
      this.#post(creditor, debtor, { kind: 'guestLoad', creditor, permille: exceedsPermille });
    }
  }

  /** @param before what is done when it arrives, before it is told */
  #post(from: number, to: number, event: Event, before?: () => void): void {
    this.#put(this.#host.network.latencyUs(from, to), { kind: 'instance', to, event, before });
  }

  #put(us: number, post: Post): void {
    const number = this.#postNumber++;
    this.#posts.set(number, post);
    this.#heap.push(this.#nowUs + us, this.#host.instances.length + 1 + number);
  }

  #deliver(number: number): void {
    const post = this.#posts.get(number);
    this.#posts.delete(number);
    if (post?.kind === 'instance') {
      post.before?.();
      this.#host.tell(this.#nowUs, post.to, post.event);
    } else if (post !== undefined) {
      this.#perform(this.#gmanager.step(this.#nowUs, { kind: 'message', envelope: post.envelope }));
      this.#checkTurn();
      this.#schedule(this.#host.instances.length);
    }
  }

  /** Who asked first for memory that no instance has alone gets on. */
  #checkTurn(): void {
    const { holder } = this.#gmanager.turns;
    const number = holder === undefined ? undefined : this.#gmanager.turns.numberOf(holder);
    if (holder !== this.#turn.holder || number !== this.#turn.number)
      this.#turn = { holder, number, sinceUs: this.#nowUs };
    if (holder !== undefined && this.#nowUs - this.#turn.sinceUs > turnUsMax)
      throw new Error(`Simulation broken: instance ${holder} gathers memory since ${this.#turn.sinceUs} us`);
  }

  /** Settlements whose commit has been said. */
  readonly #committed = new Set<number>();

  #perform(effects: readonly LendingEffect[]): void {
    for (const effect of effects) {
      if (effect.kind !== 'send') continue;
      const { message } = effect.envelope;
      if (message.kind === 'commit') this.#committed.add(message.settlement.number);
      this.#send(this.#nowUs, effect.envelope);
    }
    this.counts.settlements = this.#committed.size;
  }

  #schedule(index: number): void {
    const { instances } = this.#host;
    const nextUs = Math.max(
      this.#nowUs,
      index === instances.length ? this.#gmanager.nextUs : nextUsOf(instances[index]),
    );
    if (nextUs >= this.#wakeUs[index] || nextUs >= Number.MAX_SAFE_INTEGER) return;
    this.#wakeUs[index] = nextUs;
    this.#heap.push(nextUs, index);
  }

  /** Who owes whom, as debtors have it. */
  get debts(): readonly Debt[] {
    return this.#host.instances.flatMap(({ borrower }, debtor) => {
      const owed = new Map<number, number>();
      for (const { creditor, blocks } of borrower?.rmanager.debtor.totals ?? [])
        if (blocks > 0) owed.set(creditor, (owed.get(creditor) ?? 0) + blocks);
      return [...owed].map(([creditor, blocks]) => ({ debtor, creditor, blocks }));
    });
  }

  get totals(): readonly BorrowingTotals[] {
    return this.#host.instances.flatMap(({ borrower }) => borrower?.totals ?? []);
  }

  get #parties(): readonly LendingParty[] {
    return this.#host.instances.map(({ borrower }, instance) => ({
      instance,
      skewUs: 0,
      life: borrower === undefined ? undefined : { number: 1, rmanager: borrower.rmanager },
    }));
  }

  /** Everything said has been heard: when a step ended last. In checking mode throws unless the ledger equals the loans. */
  finish(): number {
    if (this.#checking) checkAtRest(this.#parties, this.#gmanager);
    return this.#aliveUs;
  }
}

function nextUsOf({ borrower }: LengthInstance): number {
  return borrower?.nextUs ?? Number.POSITIVE_INFINITY;
}

function isOpen({ lentBlocks, borrowedBlocks, remoteBlocks }: BorrowingTotals): boolean {
  return lentBlocks + borrowedBlocks + remoteBlocks > 0;
}
