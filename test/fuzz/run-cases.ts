// Runs numbered cases of mutated model files and checks each case's messages and memory use.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inputForms, weightsForms } from '../../src/engine/forms.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { type Mutant, mutate, unchanged } from './mutate.ts';
import { MutationRandom } from './mutation-random.ts';
import { allSeeds, type Seed } from './seeds.ts';
import type { Fault, FuzzTarget } from './target.ts';
import { type Outcome, useModel } from './use-model.ts';

/** Limit of a case's peak memory growth. Seeds are far smaller, so a larger growth follows a file's false claim. */
const peakBytesMax = 64 * 2 ** 20;

export class CaseRunner implements FuzzTarget {
  readonly #seed: number;
  readonly #backend: Backend;
  readonly #seeds: readonly Seed[] = allSeeds();
  readonly #folder = mkdtempSync(join(tmpdir(), 'kvasir-fuzz-'));
  readonly outcomes: Record<Outcome['stage'], number> = { served: 0, open: 0, text: 0, load: 0, use: 0 };

  constructor(seed: number, backend: Backend) {
    this.#seed = seed;
    this.#backend = backend;
  }

  /** Checks that every unchanged seed is served: a loader that refuses valid files would hide faults. */
  checkSeeds(): Fault[] {
    return this.#seeds.flatMap((seed) => {
      const { stage, line } = useModel(this.#write(unchanged(seed)), this.#backend, {});
      return stage === 'served' ? [] : [{ index: -1, seedName: seed.name, why: `the seed is not served: ${line}` }];
    });
  }

  /** undefined: the case was served or refused correctly. */
  run(index: number): Fault | undefined {
    const prng = new MutationRandom(Math.imul(this.#seed, 0x01000193) + index);
    const seed = prng.pick(this.#seeds);
    const path = this.#write(mutate(seed, prng));
    const form = { weights: prng.pick(weightsForms), inputs: prng.pick(inputForms) };
    const fault = (why: string): Fault => ({ index, seedName: seed.name, why });
    try {
      const peak = new PeakMemory();
      const { stage, line } = useModel(path, this.#backend, form);
      this.outcomes[stage]++;
      if (peak.bytes() <= peakBytesMax) return undefined;
      // Runs the case again, because garbage or code compiled on first use may explain the growth.
      globalThis.gc?.();
      const again = new PeakMemory();
      useModel(path, this.#backend, form);
      const bytes = again.bytes();
      return bytes <= peakBytesMax
        ? undefined
        : fault(`it took ${Math.round(bytes / 2 ** 20)} MB at its peak: ${stage}: ${line}`);
    } catch (error) {
      const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
      const where = cause instanceof Error ? (cause.stack ?? '').split('\n').slice(1, 6).join('\n') : '';
      return fault(`${error instanceof Error ? error.message : String(error)}\n${where}`);
    }
  }

  close(): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #write({ files, opens }: Mutant): string {
    const folder = join(this.#folder, 'model');
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder);
    for (const [name, content] of files) writeFileSync(join(folder, name), content);
    return join(folder, opens);
  }
}

/** Growth of the process to its peak from now on, if the system reports it; else the remaining growth. */
class PeakMemory {
  readonly #startBytes: number;

  constructor() {
    try {
      // Linux: resets the peak.
      writeFileSync('/proc/self/clear_refs', '5');
    } catch {}
    this.#startBytes = process.memoryUsage.rss();
  }

  bytes(): number {
    return peakBytes() - this.#startBytes;
  }
}

function peakBytes(): number {
  try {
    const kilobytes = /VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))?.[1];
    return Number(kilobytes) * 1024;
  } catch {
    return process.memoryUsage.rss();
  }
}
