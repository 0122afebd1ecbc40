// One instance of a lending world: its memories, its rManager and its workload, in one life after another.
import type { LendingEffect, RManagerEvent } from '../../cluster/lending/messages.ts';
import type { LendingTimes } from '../../cluster/lending/times.ts';
import { RManager } from '../../cluster/rmanager.ts';
import { BlockCache } from '../../policy/blocks/block-cache.ts';
import type { LendingPolicy } from '../../policy/lending/borrowing.ts';
import { LendingMemory } from '../../policy/lending/lending-memory.ts';
import type { Dice } from './dice.ts';
import { Workload } from './workload.ts';

export interface NodeConfig {
  readonly deviceBlocks: number;
  readonly hostBlocks: number;
  readonly stagingBlocks: number;
  readonly policy: LendingPolicy;
  readonly times: LendingTimes;
}

/** What one life has. All of it is gone after a crash. */
export interface Life {
  readonly number: number;
  readonly rmanager: RManager;
  readonly cache: BlockCache;
  readonly host: LendingMemory;
  readonly workload: Workload;
}

export class LendingNode {
  readonly instance: number;
  /** Its clock differs from the world's by so much. */
  readonly skewUs: number;
  readonly #config: NodeConfig;
  readonly #dice: Dice;
  #lives = 0;
  life: Life | undefined;
  /** It does nothing until then. */
  slowUntilUs = 0;

  constructor(instance: number, config: NodeConfig, dice: Dice) {
    this.instance = instance;
    this.#config = config;
    this.#dice = dice;
    this.skewUs = dice.between(0, 1_000_000_000);
  }

  start(): Life {
    const { deviceBlocks, hostBlocks, stagingBlocks, policy, times } = this.#config;
    const groups = [{ layers: 2, window: undefined }];
    const cache = new BlockCache({ pages: deviceBlocks * 2, blockTokens: 32, groups, eviction: 'lru' });
    const host = LendingMemory.alone(hostBlocks, 2);
    const number = ++this.#lives;
    const memories = { device: cache.lending, host };
    const rmanager = new RManager({ instance: this.instance, life: number, memories, policy, times, stagingBlocks });
    const workload = new Workload(cache, rmanager, this.#dice, policy.lowWaterBlocks);
    this.life = { number, rmanager, cache, host, workload };
    return this.life;
  }

  step(nowUs: number, event: RManagerEvent): readonly LendingEffect[] {
    return this.life?.rmanager.step(nowUs + this.skewUs, event) ?? [];
  }

  /** When it wants to be woken, in the world's time. */
  get nextUs(): number {
    const own = this.life === undefined ? Number.POSITIVE_INFINITY : this.life.rmanager.nextUs - this.skewUs;
    return Math.max(own, this.slowUntilUs);
  }

  check(): void {
    if (this.life === undefined) return;
    const { rmanager, cache, host, workload } = this.life;
    cache.check();
    host.checkAlone();
    rmanager.check();
    workload.check();
  }
}
