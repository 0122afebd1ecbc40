// Reports the memory that the sequences of an instance will need to its rManager, whenever the figures change.
import type { DemandUpdate, Reservation } from '../protocol/lending-messages.ts';

export interface DemandFigures {
  readonly rows: number;
  readonly decodeRows: number;
  /** Blocks at home that no sequence holds. */
  readonly available: number;
  /**
   * Blocks that sequences will need, less the blocks on their way out; `promised`: the part committed to running
   * sequences.
   */
  readonly ahead: number;
  readonly promised: number;
  /** Nothing runs, and a prompt waits. */
  readonly alone: boolean;
  readonly turn: Reservation | undefined;
  readonly gathered: number;
  readonly gatherings: number;
}

export class DemandReporter {
  #reported: DemandFigures | undefined;

  /** The update to report; undefined when the figures are those last reported. */
  changed(figures: DemandFigures, growth: number): DemandUpdate | undefined {
    const known = this.#reported;
    if (known !== undefined && sameFigures(known, figures)) return undefined;
    this.#reported = figures;
    const { ahead, promised, available, turn, gathered, gatherings } = figures;
    return {
      kind: 'demand',
      blocksPerSecond: Math.ceil(growth),
      aheadBlocks: ahead,
      // A prompt that fits at home waits for home memory: borrowed blocks do not admit it.
      starvedBlocks: figures.alone ? Math.max(0, ahead - available) : 0,
      committedBlocks: Math.max(0, promised),
      reservation: turn,
      reservedSequences: gathered,
      reservationsAdmitted: gatherings,
    };
  }
}

function sameFigures(a: DemandFigures, b: DemandFigures): boolean {
  return (
    a.rows === b.rows &&
    a.decodeRows === b.decodeRows &&
    a.available === b.available &&
    a.ahead === b.ahead &&
    a.promised === b.promised &&
    a.alone === b.alone &&
    a.gathered === b.gathered &&
    a.gatherings === b.gatherings &&
    a.turn?.number === b.turn?.number &&
    a.turn?.blocks === b.turn?.blocks
  );
}
