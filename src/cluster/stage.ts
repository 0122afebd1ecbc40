// A prompt of which an instance runs a range of the layers.
import { type LayerRange, rangeAt } from '../policy/cost/step-shape.ts';
import type { InstanceIndex, PipelineGroup } from './messages.ts';
import type { Served } from './work.ts';

export interface Stage<Request, S> {
  readonly request: Request;
  readonly served: S;
  readonly group: PipelineGroup;
  /** Its place in the group. */
  readonly index: number;
  /** Leading tokens whose inputs are here. */
  ready: number;
  /** Chunks that have come before those before them: from, to. */
  readonly came: Map<number, number>;
  /** It keeps blocks. */
  began: boolean;
  /** Leading tokens whose keys and values are here, of its layers; undefined: they are on their way. */
  cachedTokens: number | undefined;
  /** Of the first one: members (itself among them) that have not said yet what they have, and what all others have at least. */
  readonly awaited: Set<InstanceIndex>;
  allHave: number;
}

/** What is before that is not computed. */
export function beginAt(stage: Stage<unknown, Served>, tokens: number): void {
  const { sequence } = stage.served;
  sequence.computed = tokens;
  sequence.cachedTokens = tokens;
  stage.ready = tokens;
}

/** Who is next, and what it hears of the chunk up to `tokens` that comes after what is computed; undefined: this is the last member. */
export function passesOf({ group, index, served }: Stage<unknown, Served>, tokens: number) {
  if (index === group.members.length - 1) return undefined;
  const { computed: from, cachedTokens = 0 } = served.sequence;
  return { to: group.members[index + 1], chunk: { from, tokens, cachedTokens } };
}

export function rangeOf({ group, index }: Pick<Stage<unknown, unknown>, 'group' | 'index'>): LayerRange {
  return rangeAt(index, group.members.length, group.layers);
}
