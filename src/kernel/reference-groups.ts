// Layer groups of a step against those of its program: the same rules as native/step_check.cc.
import { type LayerGroup, pageTokens, type Step, type StepGroup } from '../util/step.ts';

/** Throws where a group is missing, or a sequence's listed blocks do not reach from its window to its last position. */
export function checkGroups(groups: readonly LayerGroup[], step: Step): void {
  for (const [index, { layers, window }] of groups.entries()) {
    const given = step.groups[index];
    if (given === undefined)
      throw new RangeError(`Cannot run the step: layer groups are missing: ${step.groups.length} of ${groups.length}`);
    if (given.layers < layers)
      throw new RangeError(
        `Cannot run the step: layer group ${index} has too few layers: ${given.layers} of ${layers}`,
      );
    for (let sequence = 0; sequence + 1 < step.rowStart.length; sequence++)
      checkBlocks(step, given, sequence, window ?? Number.POSITIVE_INFINITY);
  }
}

function checkBlocks(step: Step, group: StepGroup, sequence: number, window: number): void {
  const first = step.positions[step.rowStart[sequence]];
  const last = step.positions[step.rowStart[sequence + 1] - 1];
  const firstBlock = group.firstBlock[sequence];
  const firstSeen = Math.max(0, first - window + 1);
  if (firstBlock < 0 || firstBlock * pageTokens > firstSeen)
    throw new RangeError(
      `Cannot run the step: sequence ${sequence} misses its first blocks: first block ${firstBlock}, first key ${firstSeen}`,
    );
  const needed = Math.floor(last / pageTokens) + 1 - firstBlock;
  const start = group.blockStart[sequence];
  if (start < 0 || start + needed > group.blocks.length)
    throw new RangeError(
      `Cannot run the step: sequence ${sequence} has too few blocks: ${needed} needed from ${start} of ${group.blocks.length}`,
    );
}
