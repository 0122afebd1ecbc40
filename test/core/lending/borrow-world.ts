// Instances with fake engines that lend to one another. Their messages and copies arrive in any order that a network
// allows.
import { expect } from 'vitest';
import { createTokenInstance, type TokenInstance } from '../../../src/core/instance/token-instance.ts';
import type { SparsityConfig } from '../../../src/core/kvcache/sparsity/sparse-plan.ts';
import type { BorrowingTotals } from '../../../src/core/lending/debtor/borrower-config.ts';
import { blocksLendable, type LendingPolicy } from '../../../src/core/lending/lending-policy.ts';
import { GManager } from '../../../src/core/lending/manager/gmanager.ts';
import { defaultLendingTimes } from '../../../src/core/lending/times.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent, PrefixFetch } from '../../../src/core/protocol/events.ts';
import type { BlocksToMove, FilledBlocks } from '../../../src/core/protocol/lending-effects.ts';
import type { Envelope, LendingEffect } from '../../../src/core/protocol/lending-messages.ts';
import type { GenerationEvent, GenerationRequest } from '../../../src/core/protocol/ports.ts';
import type { PendingBlocks } from '../../../src/core/transfer/prefix-fetch/prefix-loads.ts';
import { checkLoans } from '../../../src/sim/checks/lending-checks.ts';
import { counterUniform } from '../../../src/util/counter-random.ts';
import { pageTokens, rangeTokens } from '../../../src/util/step.ts';
import { baseConfig, limits } from '../instance-world.ts';
import { FakeEngine } from '../scheduler/fake-engine.ts';
import { FakePrefixDriver } from '../transfer/fake-prefix-driver.ts';
import type { BlockCopy, MoveInFlight } from './borrow-copies.ts';

const dense = [{ layers: 2, window: undefined }] as const;
const sparse = [{ layers: 2, window: undefined, sparse: true }] as const;
export const rangeBlocks = rangeTokens / pageTokens;
const stagingBlocks = 2 * rangeBlocks;
export const times = {
  ...defaultLendingTimes,
  settleUs: 20_000,
  heartbeatUs: 20_000,
  holdUs: 200_000,
  remoteCacheUs: 500_000,
};

export const defaultPolicy: LendingPolicy = {
  lentShareMax: 0.9,
  lowWaterBlocks: 2,
  highWaterBlocks: 2 + 2 * rangeBlocks,
  recallBlocks: 1,
  lookAheadUs: 50_000,
  loanBlocksMin: rangeBlocks,
  remoteAttentionPermilleMax: 300,
  unitBlocks: rangeBlocks,
};

type Running = Extract<InstanceEffect, { kind: 'runStep' }>;

interface Wire {
  readonly to: number | 'gmanager';
  readonly queue: (InstanceEvent | { readonly kind: 'toManager'; readonly envelope: Envelope })[];
}

export interface BorrowWorldOptions {
  /** (instances): blocks of each pool. */
  readonly blocks: readonly number[];
  /** Debt cycles are settled. */
  readonly settles: boolean;
  readonly seed: number;
  readonly changes?: Partial<LendingPolicy>;
  /** Blocks of host memory for sequences. */
  readonly hostBlocks?: number;
  /** Requests start while their prefixes arrive. */
  readonly aheadOfUse?: boolean;
  /** Steps wait for all arriving blocks; otherwise some steps do not. */
  readonly patient?: boolean;
  /** Requests keep only some tokens. */
  readonly sparsity?: SparsityConfig | undefined;
  /** One for each instance. */
  readonly tiers?: { readonly hostBlocks: number; readonly ssdBlocks: number } | undefined;
}

export class BorrowWorld {
  readonly instances: readonly TokenInstance[];
  readonly engines: readonly FakeEngine[];
  readonly gmanager: GManager;
  readonly events = new Map<string, GenerationEvent[]>();
  readonly running = new Map<number, Running>();
  readonly dead = new Set<number>();
  readonly faults: string[] = [];
  readonly holdUs = times.holdUs;
  nowUs = 0;
  /** Steps with keys at creditors, and the refused ones among them. */
  remoteSteps = 0;
  unanswered = 0;
  settlements = 0;
  /** (instances): pages of lent blocks, by debtor and block. */
  readonly #lent: readonly Map<string, ArrayLike<number>>[];
  readonly #wires = new Map<string, Wire>();
  readonly #copies = new Map<string, MoveInFlight>();
  readonly #instanceByRequest = new Map<string, number>();
  readonly prefixes: FakePrefixDriver;
  readonly #patient: boolean;
  /** The blocks that each step in flight waits for. */
  readonly #pending = new Map<number, readonly PendingBlocks[]>();

  /** (instances): blocks that each may lend. */
  readonly #lendable: readonly number[];

  constructor(options: BorrowWorldOptions) {
    const { blocks, settles, seed, changes, hostBlocks = 0, aheadOfUse, patient, tiers, sparsity } = options;
    const groups = sparsity === undefined ? dense : sparse;
    this.#patient = patient === true;
    const policy = { ...defaultPolicy, ...changes };
    const lendable = blocks.map((total) => blocksLendable({ total, available: total, lent: 0 }, policy));
    const lendableHost = blocksLendable({ total: hostBlocks, available: hostBlocks, lent: 0 }, policy);
    this.#lendable = lendable.map((own) => own + lendableHost);
    const hosts = hostBlocks + (blocks.length - 1) * lendableHost;
    // As in live instances, one block after host memory receives contents that are not used.
    const tierBlocks = tiers === undefined ? 0 : tiers.hostBlocks + 1;
    const all = lendable.reduce((sum, each) => sum + each, hosts);
    this.instances = blocks.map((total, instance) =>
      createTokenInstance({
        ...baseConfig,
        ...{ groups, pages: total * 2, limits: { ...limits, sequencesMax: 6 } },
        ...{ aheadOfUse, contents: { onSsd: undefined }, tiers, sparsity },
        borrowing: {
          ...{ instance, policy, times, stagingBlocks, rangeBlocks },
          ...{ hostBlocks, hostFirstPage: (total + stagingBlocks + tierBlocks) * 2 },
          borrowableBlocks: all - (lendable[instance] ?? 0),
        },
        serverOf: (creditor) => ({ server: creditor, loan: instance }),
      }),
    );
    this.engines = blocks.map(
      (total) => new FakeEngine((total + stagingBlocks + tierBlocks + hostBlocks) * 2, groups, this.#pagesLent),
    );
    this.prefixes = new FakePrefixDriver(this.engines, tiers?.ssdBlocks ?? 0, (from, to, event) => {
      if (!this.dead.has(to)) this.#wire(from, to).queue.push(event);
    });
    this.#lent = blocks.map(() => new Map());
    this.gmanager = new GManager({
      epoch: 1,
      times: settles ? times : { ...times, settleUs: Number.MAX_SAFE_INTEGER },
      blocksMin: rangeBlocks,
      rangeBlocks,
      uniform: (counter) => counterUniform(seed, 1, counter),
    });
  }

  readonly #pagesLent = (server: number, loan: number, block: number) => {
    const pages = this.#lent[server]?.get(`${loan} ${block}`);
    const engine = this.engines[server];
    return pages === undefined || engine === undefined ? undefined : { engine, pages };
  };

  submit(request: GenerationRequest, at: number, prefix?: PrefixFetch): void {
    this.events.set(request.id, []);
    this.#instanceByRequest.set(request.id, at);
    this.step(at, { kind: 'submit', request, prefix });
  }

  cancel(id: string): void {
    const at = this.#instanceByRequest.get(id);
    this.events.delete(id);
    if (at !== undefined) this.step(at, { kind: 'cancel', id });
  }

  /** The instance crashes with all its memory; the others are informed. */
  kill(instance: number): void {
    this.dead.add(instance);
    this.running.delete(instance);
    for (const [id, at] of this.#instanceByRequest) if (at === instance) this.events.delete(id);
    for (const [key, { to }] of this.#wires) if (to === instance) this.#wires.delete(key);
    for (const [name, { from, to, debtor }] of this.#copies)
      if ([from, to, debtor].includes(instance)) this.#copies.delete(name);
    this.#lent[instance]?.clear();
    this.prefixes.instanceFailed(instance);
    for (const to of this.instances.keys()) {
      this.step(to, { kind: 'instanceFailed', instance });
      const others = this.#lendable.filter((_, other) => other !== to && !this.dead.has(other));
      this.step(to, { kind: 'lenders', lendableBlocks: others.reduce((sum, own) => sum + own, 0) });
    }
  }

  step(to: number, event: InstanceEvent): void {
    const machine = this.instances[to];
    if (machine === undefined || this.dead.has(to)) return;
    const ran = this.running.get(to);
    this.prefixes.onEvent(to, event);
    for (const effect of machine.step(this.nowUs, event)) this.#apply(to, effect);
    if (this.running.get(to) !== ran) this.#pending.set(to, machine.components.prefixes.pendingBlocks(this.nowUs));
    machine.check();
    this.#checkLoans();
  }

  #checkLoans(): void {
    const parties = this.instances.map(({ components: { borrower } }, instance) => {
      if (borrower === undefined) throw new Error('The instance has no borrower');
      const incarnation = this.dead.has(instance) ? undefined : { number: 1, rmanager: borrower.rmanager };
      return { instance, skewUs: 0, incarnation };
    });
    checkLoans(this.nowUs, parties);
  }

  #apply(from: number, effect: InstanceEffect): void {
    switch (effect.kind) {
      case 'runStep':
        expect(this.running.has(from)).toBe(false);
        this.running.set(from, effect);
        break;
      case 'emit':
        this.events.get(effect.id)?.push(effect.event);
        break;
      case 'fault':
        this.faults.push(effect.message);
        break;
      case 'lending':
        this.#send(from, effect.envelope);
        break;
      case 'moveBlocks':
        this.#move(from, effect);
        break;
      case 'fillBlocks':
        this.#fill(from, effect);
        break;
      case 'copyHome':
        for (const [i, page] of effect.from.entries())
          this.engines[from]?.copy(effect.to[i] ?? -1, this.engines[from], page);
        break;
      case 'stopMove':
        this.#copies.delete(`${from} ${effect.move}`);
        break;
      case 'lendBlocks':
        for (const [i, block] of effect.blocks.entries())
          this.#lent[from]?.set(`${effect.to} ${block}`, effect.pages.slice(i * 2, i * 2 + 2));
        break;
      case 'takeBackBlocks':
        for (const block of effect.blocks) this.#lent[from]?.delete(`${effect.from} ${block}`);
        break;
      default:
        this.prefixes.apply(from, effect);
    }
  }

  #send(from: number | 'gmanager', envelope: Envelope): void {
    const { to, message } = envelope;
    if (message.kind === 'commit') this.settlements++;
    if (typeof to === 'number' && this.dead.has(to)) return;
    const event = to === 'gmanager' ? { kind: 'toManager' as const, envelope } : { kind: 'lending' as const, envelope };
    this.#wire(from, to).queue.push(event);
  }

  #wire(from: number | 'gmanager', to: number | 'gmanager'): Wire {
    const key = `${from} ${to}`;
    const wire = this.#wires.get(key) ?? { to, queue: [] };
    this.#wires.set(key, wire);
    return wire;
  }

  #move(debtor: number, move: BlocksToMove): void {
    const { sources, targets } = move;
    const copying: MoveInFlight = { ...move, debtor, blocks: [], last: sources !== undefined };
    for (const [i, source] of (sources ?? []).entries())
      copying.blocks.push(this.#blockCopy(copying, source, targets[i] ?? -1, undefined));
    this.#copies.set(`${debtor} ${move.move}`, copying);
  }

  #fill(debtor: number, { move, at, sources, step, last }: FilledBlocks): void {
    const copying = this.#copies.get(`${debtor} ${move}`);
    if (copying === undefined) return;
    this.prefixes.runLoads(debtor);
    for (const [i, source] of sources.entries())
      copying.blocks.push(this.#blockCopy(copying, source, copying.targets[at + i] ?? -1, step));
    copying.last = last;
  }

  #blockCopy({ debtor, from, to }: MoveInFlight, source: number, target: number, step: number | undefined): BlockCopy {
    const pagesOf = (instance: number, at: number) => {
      if (instance !== debtor) return this.#lent[instance]?.get(`${debtor} ${at}`);
      return this.instances[debtor]?.pools[0]?.pageTable.slice(at * 2, at * 2 + 2);
    };
    return { from: pagesOf(from, source), to: pagesOf(to, target), source, target, step };
  }

  /** True if a block can be copied, or only the end of the move is left to report. */
  #canCopy({ debtor, blocks: [next], last }: MoveInFlight): boolean {
    if (next === undefined) return last;
    return next.step === undefined || this.running.get(debtor)?.step !== next.step;
  }

  /** Copies one more block. If the creditor has taken it back, the move never completes. */
  #copy(name: string, copying: MoveInFlight): void {
    const { debtor, from, to, blocks, move } = copying;
    const isLent = (instance: number, lentBlock = -1) =>
      instance === debtor || this.#lent[instance]?.has(`${debtor} ${lentBlock}`) === true;
    const block = blocks.shift();
    if (block !== undefined) {
      const { from: source, to: target } = block;
      if (source === undefined || target === undefined || !isLent(from, block.source) || !isLent(to, block.target)) {
        this.#copies.delete(name);
        return;
      }
      for (let layer = 0; layer < 2; layer++) {
        const engine = this.engines[from];
        if (engine !== undefined) this.engines[to]?.copy(target[layer] ?? -1, engine, source[layer] ?? -1);
      }
    }
    if (blocks.length > 0 || !copying.last) return;
    this.#copies.delete(name);
    // A copy from a creditor is ordered with the creditor's messages.
    this.#wire(to, debtor).queue.push({ kind: 'moved', move });
  }

  /** Runs one of the possible next events after the given time. False: there is none. */
  advance(choice: number, elapsedUs: number, aborts = false): boolean {
    this.nowUs += elapsedUs;
    this.#wake();
    const options = [
      ...[...this.#wires.values()].filter(({ queue }) => queue.length > 0).map((wire) => () => this.#deliver(wire)),
      ...[...this.running.keys()].map((at) => () => this.#endStep(at, aborts, this.#patient || choice % 7 > 0)),
      ...this.prefixes.options(),
      ...[...this.#copies]
        .filter(([, copying]) => this.#canCopy(copying))
        .map(
          ([name, copying]) =>
            () =>
              this.#copy(name, copying),
        ),
    ];
    options[choice % Math.max(1, options.length)]?.();
    return options.length > 0;
  }

  #wake(): void {
    for (const [at, machine] of this.instances.entries())
      if (Math.min(machine.components.borrower?.tickUs ?? Number.POSITIVE_INFINITY, machine.nextUs) <= this.nowUs)
        this.step(at, { kind: 'wake' });
    if (this.gmanager.nextUs <= this.nowUs) this.#perform(this.gmanager.step(this.nowUs, { kind: 'tick' }));
  }

  #perform(effects: readonly LendingEffect[]): void {
    for (const effect of effects) if (effect.kind === 'send') this.#send('gmanager', effect.envelope);
  }

  #deliver({ to, queue }: Wire): void {
    const event = queue.shift();
    if (event === undefined) return;
    if (event.kind === 'toManager') {
      const { envelope } = event;
      this.#perform(this.gmanager.step(this.nowUs, { kind: 'message', envelope }));
    } else if (to !== 'gmanager') this.step(to, event);
  }

  #endStep(at: number, aborts: boolean, patient: boolean): void {
    const running = this.running.get(at);
    const engine = this.engines[at];
    if (running === undefined || engine === undefined) return;
    this.running.delete(at);
    this.prefixes.runLoads(at);
    const { step, plan } = running;
    if (aborts) {
      // Rows over kept tokens have changed them.
      if (plan.sparse !== undefined && plan.remote.length === 0) engine.abort(plan, plan.tokens.length);
      this.prefixes.runStores(at);
      this.step(at, { kind: 'stepAborted', step });
    } else {
      const result = engine.run(plan, this.prefixes.missing(at, this.#pending.get(at) ?? [], patient));
      this.remoteSteps += Number(plan.remote.length > 0);
      this.unanswered += result.failedSequences.length;
      this.prefixes.runStores(at);
      this.step(at, { kind: 'stepDone', step, result });
    }
  }

  /** Runs events until the condition holds; fails after `turns` events. */
  until(what: string, isSo: () => boolean, turns = 50_000): void {
    for (let i = 0; i < turns; i++) {
      if (isSo()) return;
      if (!this.advance(i, 200)) this.nowUs += 2_000;
    }
    throw new Error(`Condition does not hold after ${turns} turns: ${what}: ${JSON.stringify(this.#left)}`);
  }

  lastOf(id: string): GenerationEvent | undefined {
    return this.events.get(id)?.at(-1);
  }

  /** (instances) */
  get totals(): readonly BorrowingTotals[] {
    return this.instances.flatMap(({ components: { borrower } }) => borrower?.totals ?? []);
  }

  /** Tokens that the client of a request has received. */
  tokensOf(id: string): readonly number[] {
    return (this.events.get(id) ?? []).flatMap((event) => (event.kind === 'tokens' ? [...event.tokens] : []));
  }

  /** Runs events until all requests have ended and nothing is lent; fails after `turns` events. */
  finish(turns = 200_000): void {
    for (let i = 0; i < turns; i++) {
      if (!this.advance(i, 200)) this.nowUs += 2_000;
      if (i % 50 === 0 && this.#isOver) return;
    }
    throw new Error(`Requests or loans remain after ${turns} turns: ${JSON.stringify(this.#left)}`);
  }

  get #isOver(): boolean {
    return this.#left.every(({ pages, lent, owed, requests }) => pages + lent + owed + requests === 0);
  }

  get #left() {
    return this.instances.flatMap(({ components: { borrower }, requests, snapshot }, at) => {
      if (borrower === undefined || this.dead.has(at)) return [];
      const { lentBlocks: lent, borrowedBlocks: owed } = borrower.totals;
      return [{ pages: snapshot.call(this.instances[at]).pages.used, lent, owed, requests: requests.size }];
    });
  }
}
