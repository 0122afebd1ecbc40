// What an instance tells its rManager of the memory that its sequences will need: only when that has changed.
import type { RManagerEvent } from './messages.ts';

type Growth = Extract<RManagerEvent, { kind: 'growth' }>;

export interface DemandFigures {
  readonly rows: number;
  readonly decodeRows: number;
  /** Blocks at home that no sequence holds, blocks to come less those on their way out, and borrowed ones that nobody uses. */
  readonly available: number;
  readonly ahead: number;
  readonly inHand: number;
  /** Nothing runs, and a prompt waits. */
  readonly alone: boolean;
}

/**
 * A prompt that waits alone, and for which not enough is found, lets others try after a while: what was borrowed for it goes back. So two
 * that each hold what the other needs do not wait for ever.
 */
export class DemandTeller {
  readonly #patienceUs: number;
  readonly #pauseUs: number;
  #told: DemandFigures | undefined;
  #paused = false;
  /** Since when a prompt waits alone, or since when it lets others try. */
  #sinceUs: number | undefined;

  constructor(patienceUs: number, pauseUs: number) {
    this.#patienceUs = patienceUs;
    this.#pauseUs = pauseUs;
  }

  /** A prompt waits and nothing runs. */
  get starves(): boolean {
    return this.#sinceUs !== undefined;
  }

  get nextUs(): number {
    if (this.#sinceUs === undefined) return Number.POSITIVE_INFINITY;
    return this.#sinceUs + (this.#paused ? this.#pauseUs : this.#patienceUs);
  }

  /** What to tell; undefined when it is known. */
  tell(nowUs: number, figures: DemandFigures, growth: number): Growth | undefined {
    const turned = this.#wait(nowUs, figures.alone);
    const known = this.#told;
    if (known !== undefined && !turned && sameFigures(known, figures)) return undefined;
    this.#told = figures;
    const aheadBlocks = this.#paused ? 0 : figures.ahead;
    const starved = figures.alone && !this.#paused ? figures.ahead - figures.available - figures.inHand : 0;
    const blocksPerSecond = Math.ceil(growth);
    return { kind: 'growth', blocksPerSecond, aheadBlocks, starvedBlocks: Math.max(0, starved) };
  }

  #wait(nowUs: number, alone: boolean): boolean {
    if (!alone) {
      const paused = this.#paused;
      this.#sinceUs = undefined;
      this.#paused = false;
      return paused;
    }
    const due = nowUs >= this.nextUs;
    if (due) this.#paused = !this.#paused;
    if (due || this.#sinceUs === undefined) this.#sinceUs = nowUs;
    return due;
  }
}

function sameFigures(a: DemandFigures, b: DemandFigures): boolean {
  return (
    a.rows === b.rows &&
    a.decodeRows === b.decodeRows &&
    a.available === b.available &&
    a.ahead === b.ahead &&
    a.alone === b.alone &&
    (!a.alone || a.inHand === b.inHand)
  );
}
