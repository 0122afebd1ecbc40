// One instance of a lending world: its memories, its rManager and its workload, in one life after another.
import { InstanceMemory, type LendingPolicy } from '../../core/lending/instance-memory.ts';
import { RManager } from '../../core/lending/rmanager.ts';
import type { LendingTimes } from '../../core/lending/times.ts';
import type { LendingEffect, RManagerEvent } from '../../core/protocol/lending-messages.ts';
import type { Prng } from '../../util/prng.ts';
import { Workload } from './workload.ts';

export interface NodeConfig {
  readonly deviceBlocks: number;
  readonly hostBlocks: number;
  readonly stagingBlocks: number;
  readonly policy: LendingPolicy;
  /** Of a step: that a sequence comes that no instance could hold alone. */
  readonly longChance: number;
  readonly times: LendingTimes;
}

/** What one life has. All of it is gone after a crash. */
export interface Incarnation {
  readonly number: number;
  readonly rmanager: RManager;
  readonly memory: InstanceMemory;
  readonly workload: Workload;
  /** rBlocks whose contents were copied to the staging buffer. */
  readonly fetched: Set<number>;
}

export class LendingNode {
  readonly instance: number;
  /** Its clock differs from the world's by so much. */
  readonly skewUs: number;
  readonly #config: NodeConfig;
  readonly #prng: Prng;
  #incarnations = 0;
  incarnation: Incarnation | undefined;
  /** It does nothing until then. */
  slowUntilUs = 0;

  constructor(instance: number, config: NodeConfig, prng: Prng) {
    this.instance = instance;
    this.#config = config;
    this.#prng = prng;
    this.skewUs = prng.integer(0, 1_000_000_000);
  }

  start(): Incarnation {
    const { deviceBlocks, hostBlocks, stagingBlocks, policy, times, longChance } = this.#config;
    const groups = [{ layers: 2, window: undefined }];
    const device = { pages: deviceBlocks * 2, blockTokens: 32, groups, eviction: 'lru' } as const;
    const memory = new InstanceMemory(device, hostBlocks);
    const number = ++this.#incarnations;
    const { instance } = this;
    const memories = memory.lending;
    const rmanager = new RManager({ instance, incarnation: number, memories, policy, times, stagingBlocks });
    const workload = new Workload(memory, rmanager, this.#prng, {
      lowWaterBlocks: policy.lowWaterBlocks,
      longChance,
    });
    this.incarnation = { number, rmanager, memory, workload, fetched: new Set() };
    return this.incarnation;
  }

  step(nowUs: number, event: RManagerEvent): readonly LendingEffect[] {
    return this.incarnation?.rmanager.step(nowUs + this.skewUs, event) ?? [];
  }

  /** When it wants to be woken, in the world's time. */
  get nextUs(): number {
    const own =
      this.incarnation === undefined ? Number.POSITIVE_INFINITY : this.incarnation.rmanager.nextUs - this.skewUs;
    return Math.max(own, this.slowUntilUs);
  }

  check(): void {
    if (this.incarnation === undefined) return;
    const { rmanager, memory, workload, fetched } = this.incarnation;
    for (const [rblock, { kind }] of rmanager.table.entries()) {
      if (kind === 'staged' && !fetched.has(rblock))
        throw new Error(`Lending broken: rBlock ${rblock} left its creditor before its contents were copied`);
    }
    memory.check();
    rmanager.check();
    workload.check();
  }
}
