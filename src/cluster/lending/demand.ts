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
  /** Since when a prompt waits alone. */
  #sinceUs: number | undefined;
  /** Others are to try until then. */
  #pausedUntilUs: number | undefined;

  constructor(patienceUs: number, pauseUs: number) {
    this.#patienceUs = patienceUs;
    this.#pauseUs = pauseUs;
  }

  /** A prompt waits and nothing runs. */
  get starves(): boolean {
    return this.#sinceUs !== undefined || this.paused;
  }

  /** Nothing is borrowed for a while. */
  get paused(): boolean {
    return this.#pausedUntilUs !== undefined;
  }

  get nextUs(): number {
    if (this.#pausedUntilUs !== undefined) return this.#pausedUntilUs;
    return this.#sinceUs === undefined ? Number.POSITIVE_INFINITY : this.#sinceUs + this.#patienceUs;
  }

  /** Others may have what was borrowed here. */
  pause(nowUs: number): void {
    this.#pausedUntilUs = nowUs + this.#pauseUs;
    this.#sinceUs = undefined;
    this.#told = undefined;
  }

  /** Before a plan is made: a pause that is over counts no more. */
  advance(nowUs: number): void {
    if (this.#pausedUntilUs === undefined || nowUs < this.#pausedUntilUs) return;
    this.#pausedUntilUs = undefined;
    this.#told = undefined;
  }

  /** What to tell; undefined when it is known. */
  tell(nowUs: number, figures: DemandFigures, growth: number): Growth | undefined {
    this.#wait(nowUs, figures.alone);
    const known = this.#told;
    if (known !== undefined && sameFigures(known, figures)) return undefined;
    this.#told = figures;
    const aheadBlocks = this.paused ? 0 : figures.ahead;
    const starved = figures.alone && !this.paused ? figures.ahead - figures.available - figures.inHand : 0;
    const blocksPerSecond = Math.ceil(growth);
    return { kind: 'growth', blocksPerSecond, aheadBlocks, starvedBlocks: Math.max(0, starved) };
  }

  #wait(nowUs: number, alone: boolean): void {
    if (this.paused) return;
    if (!alone) this.#sinceUs = undefined;
    else this.#sinceUs ??= nowUs;
    if (this.#sinceUs !== undefined && nowUs >= this.#sinceUs + this.#patienceUs) this.pause(nowUs);
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
