// A request as the batcher sees it: tokens, blocks, and how far both have come.
import { Int32List } from '../../util/int32-list.ts';
import { pageTokens } from '../../util/step.ts';
import { HashChain } from '../blocks/block-hash.ts';
import { BlockTable } from '../blocks/block-table.ts';

export interface SequenceSpec {
  readonly prompt: Int32Array;
  /** Digest that its blocks chain from (model and tenant). */
  readonly root: Uint32Array;
  /** Larger runs first. */
  readonly priority: number;
  /** Unique and rising: the order inside a priority. */
  readonly arrival: number;
  /** False: only the prompt is computed. */
  readonly samples: boolean;
  /** Every prompt row but the last needs logits. */
  readonly scoresPrompt: boolean;
  /** Layer groups of the model. */
  readonly groups: number;
}

export type SequenceState = 'new' | 'waiting' | 'running' | 'ended';

/** The batcher alone moves it between states and hands it blocks; its owner appends the tokens that were sampled. */
export class Sequence {
  readonly priority: number;
  readonly arrival: number;
  readonly promptLength: number;
  readonly samples: boolean;
  readonly scoresPrompt: boolean;
  /** Prompt, then output. */
  readonly tokens: Int32List;
  readonly chain: HashChain;
  readonly table: BlockTable;
  state: SequenceState = 'new';
  /** Leading tokens whose keys and values are in the table's blocks. */
  computed = 0;
  /** Leading prompt rows whose log-probabilities have been reported. */
  scored = 0;
  /** Rows of the step that is planned or in flight: positions computed..computed+planned-1. */
  planned = 0;
  /** Prompt tokens that came from the cache when it first started. */
  cachedTokens: number | undefined;
  /** Full blocks that it has promised to compute, for others to wait for: from..to. */
  claimedFrom = 0;
  claimedTo = 0;
  /** Its place among the running ones, while it runs. */
  slot = 0;
  /** Index of a block that another sequence is computing, while waiting for it. */
  waitsForBlock: number | undefined;

  constructor(spec: SequenceSpec) {
    this.priority = spec.priority;
    this.arrival = spec.arrival;
    this.promptLength = spec.prompt.length;
    this.samples = spec.samples;
    this.scoresPrompt = spec.scoresPrompt;
    this.table = new BlockTable(spec.groups);
    this.tokens = Int32List.from(spec.prompt, spec.samples ? pageTokens : 0);
    this.chain = new HashChain(spec.root, Math.ceil(this.promptLength / pageTokens) + 1);
    this.chain.extend(this.tokens.raw, this.promptLength);
  }

  /** Known tokens still to compute. */
  get remaining(): number {
    return this.tokens.length - this.computed;
  }

  /** Full blocks that may come from the cache: never the last token, whose logits are wanted, nor a prompt row still to be scored. */
  get reusableBlocks(): number {
    const known = this.tokens.length - 1;
    return Math.floor((this.scoring ? Math.min(known, this.scored) : known) / pageTokens);
  }

  get scoring(): boolean {
    return this.scoresPrompt && this.scored < this.promptLength - 1;
  }

  /** Position of the first planned row that is scored, and how many there are. */
  get scoredRowsFrom(): number {
    return Math.max(this.computed, this.scored);
  }

  get scoredRows(): number {
    if (!this.scoring) return 0;
    return Math.max(0, Math.min(this.computed + this.planned, this.promptLength - 1) - this.scoredRowsFrom);
  }

  /** True when the last planned row is that of the last known token. */
  get samplesNow(): boolean {
    return this.samples && this.planned > 0 && this.planned === this.remaining;
  }
}

/** The order of everything: larger priority first, then earlier arrival. */
export function outranks(a: Sequence, b: Sequence): boolean {
  return a.priority === b.priority ? a.arrival < b.arrival : a.priority > b.priority;
}
