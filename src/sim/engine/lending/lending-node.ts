// One instance of a lending world, over several incarnations: its memory, its rManager and its sequences.
import { InstanceMemory, type LendingPolicy } from '../../../core/lending/instance-memory.ts';
import { RManager } from '../../../core/lending/rmanager.ts';
import type { LendingTimes } from '../../../core/lending/times.ts';
import type { LendingEffect, RManagerEvent } from '../../../core/protocol/lending-messages.ts';
import type { Prng } from '../../../util/prng.ts';
import { GrowingSequences } from '../../workload/growing-sequences.ts';

export interface NodeConfig {
  readonly deviceBlocks: number;
  readonly hostBlocks: number;
  readonly stagingBlocks: number;
  readonly policy: LendingPolicy;
  /** Probability per step that a sequence arrives that exceeds every instance. */
  readonly longChance: number;
  readonly times: LendingTimes;
}

/** The state of one incarnation, which a failure discards. */
export interface NodeIncarnation {
  readonly number: number;
  readonly rmanager: RManager;
  readonly memory: InstanceMemory;
  readonly sequences: GrowingSequences;
  /** rBlocks with contents in the staging buffer. */
  readonly staged: Set<number>;
}

export class LendingNode {
  readonly instance: number;
  /** Offset of the instance's clock from the world's. */
  readonly skewUs: number;
  readonly #config: NodeConfig;
  readonly #prng: Prng;
  #incarnations = 0;
  /** Undefined: the instance is down. */
  incarnation: NodeIncarnation | undefined;
  /** Actions that wait until the pause of a slow instance ends; undefined: it is not slow. */
  paused: (() => void)[] | undefined;

  constructor(instance: number, config: NodeConfig, prng: Prng) {
    this.instance = instance;
    this.#config = config;
    this.#prng = prng;
    this.skewUs = prng.integer(0, 1_000_000_000);
  }

  start(): NodeIncarnation {
    const { deviceBlocks, hostBlocks, stagingBlocks, policy, times, longChance } = this.#config;
    const groups = [{ layers: 2, window: undefined }];
    const device = { pages: deviceBlocks * 2, blockTokens: 32, groups, eviction: 'lru' } as const;
    const memory = new InstanceMemory(device, hostBlocks);
    const number = ++this.#incarnations;
    const { instance } = this;
    const memories = memory.lending;
    const rmanager = new RManager({ instance, incarnation: number, memories, policy, times, stagingBlocks });
    const limits = { lowWaterBlocks: policy.lowWaterBlocks, longChance };
    const sequences = new GrowingSequences(memory, rmanager, this.#prng, limits);
    this.incarnation = { number, rmanager, memory, sequences, staged: new Set() };
    return this.incarnation;
  }

  step(nowUs: number, event: RManagerEvent): readonly LendingEffect[] {
    return this.incarnation?.rmanager.step(nowUs + this.skewUs, event) ?? [];
  }

  /** Next wake, in the world's time. */
  get nextUs(): number {
    return this.incarnation === undefined ? Number.POSITIVE_INFINITY : this.incarnation.rmanager.nextUs - this.skewUs;
  }

  check(): void {
    if (this.incarnation === undefined) return;
    const { rmanager, memory, sequences, staged } = this.incarnation;
    for (const [rblock, { kind }] of rmanager.table.entries()) {
      if (kind === 'staged' && !staged.has(rblock))
        throw new Error(`Lending broken: rBlock ${rblock} left its creditor before its contents were copied`);
    }
    memory.check();
    rmanager.check();
    sequences.check();
  }
}
