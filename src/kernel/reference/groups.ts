// Layer groups and remote keys of a step against those of its program: the same rules as native/ops/step_check.cc.
import {
  type LayerGroup,
  pageTokens,
  type RemoteKeys,
  rangeTokens,
  remoteBlock,
  type Step,
  type StepGroup,
} from '../../util/step.ts';
import { isSparse } from './sparse-check.ts';

/** @throws RangeError if a group is missing, or a sequence's blocks do not cover its window up to its last position */
export function checkGroups(groups: readonly LayerGroup[], step: Step): void {
  checkRemote(groups, step);
  for (const [index, { layers, window }] of groups.entries()) {
    const given = step.groups[index];
    if (given === undefined)
      throw new RangeError(`Cannot run the step: layer groups are missing: ${step.groups.length} of ${groups.length}`);
    if (given.layers < layers)
      throw new RangeError(
        `Cannot run the step: layer group ${index} has too few layers: ${given.layers} of ${layers}`,
      );
    for (let sequence = 0; sequence + 1 < step.rowStart.length; sequence++)
      if (!isSparse(step, sequence, index)) checkBlocks(step, given, sequence, window ?? Number.POSITIVE_INFINITY);
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
  const remote = group.blocks
    .subarray(start, start + needed)
    .reduce((sum, block) => sum + Number(block === remoteBlock), 0);
  const index = step.groups.indexOf(group);
  const listed = step.remote.filter((keys) => keys.sequence === sequence && keys.group === index);
  const listedBlocks = listed.reduce((sum, { blocks }) => sum + blocks.length, 0);
  if (remote !== listedBlocks)
    throw new RangeError(
      `Cannot run the step: sequence ${sequence} has ${remote} blocks that are not local: remote keys list ${listedBlocks}`,
    );
}

/** Remote keys are whole ranges before that of the sequence's first row, in order, and none of them is local. */
function checkRemote(groups: readonly LayerGroup[], step: Step): void {
  for (const [index, keys] of step.remote.entries()) {
    const why = remoteKeysError(groups, step, keys, step.remote[index - 1]);
    if (why !== undefined) throw new RangeError(`Cannot run the step: remote[${index}] ${why}`);
  }
}

function remoteKeysError(
  groups: readonly LayerGroup[],
  step: Step,
  { sequence, group, firstBlock, blocks }: RemoteKeys,
  before: RemoteKeys | undefined,
): string | undefined {
  if (!(sequence >= 0 && sequence + 1 < step.rowStart.length)) return `names sequence ${sequence}`;
  if (groups[group] === undefined || groups[group].window !== undefined) return `names layer group ${group}`;
  const rangeBlocks = rangeTokens / pageTokens;
  const whole = firstBlock >= 0 && firstBlock % rangeBlocks === 0 && blocks.length % rangeBlocks === 0;
  if (!whole || blocks.length === 0) return `holds no whole ranges: ${blocks.length} blocks from ${firstBlock}`;
  const firstRow = step.positions[step.rowStart[sequence]];
  const end = firstBlock + blocks.length;
  if (end > Math.floor(firstRow / rangeTokens) * rangeBlocks)
    return `reaches block ${end}: the range of position ${firstRow} is local`;
  if (before !== undefined) {
    const same = before.sequence === sequence && before.group === group;
    const early = before.sequence < sequence || (before.sequence === sequence && before.group < group);
    if (!early && !(same && before.firstBlock + before.blocks.length <= firstBlock)) return 'is not in order';
  }
  const listed = step.groups[group];
  if (listed === undefined) return `names layer group ${group}`;
  const at = listed.blockStart[sequence] + firstBlock - listed.firstBlock[sequence];
  if (listed.blocks.subarray(at, at + blocks.length).some((block) => block !== remoteBlock))
    return 'holds local blocks';
  return undefined;
}
