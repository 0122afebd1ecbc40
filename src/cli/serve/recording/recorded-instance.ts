// The state of an instance as a recording has it, from what the instance reports.

import type { InstanceRole } from '../../../core/protocol/instance-report.ts';
import type { InstanceSnapshot } from '../../../core/protocol/ports.ts';
import type { RecordedInstance, ReportedState } from '../../../trace/recording/recording.ts';
import { pageTokens } from '../../../util/step.ts';

/** Fewer bytes give no reliable rate. */
const sampleBytesMin = 2 ** 20;

/** What predictions read of a report. @param numberOf the number of the instance at a place; undefined: none is there */
export function reportedState(
  { stepCost, servedAttentionPermille, running, steps, stepMsTotal, sent, tiers, links = [] }: InstanceSnapshot,
  numberOf: (place: number) => number | undefined,
): ReportedState {
  const rates = links.flatMap(({ to, bytesPerSecond }) => {
    const number = numberOf(to);
    return number === undefined || bytesPerSecond === undefined ? [] : [[number, Math.round(bytesPerSecond)] as const];
  });
  return {
    ...(stepCost && { stepCost }),
    ...(servedAttentionPermille !== undefined && { servedAttentionPermille }),
    ...{ running, steps, stepMsTotal },
    ...(sent && { sentBytes: sent.bytes, sentSeconds: sent.copySeconds }),
    ...(tiers?.moved && { ssdReadBytes: tiers.moved.ssdReadBytes, ssdReadSeconds: tiers.moved.ssdReadSeconds }),
    ...(rates.length > 0 && { links: rates }),
  };
}

/** Name and role alone of an instance that has not reported yet. @param place names an instance without a name */
export function recordedInstance(
  { name = '', blocks, pages, receivePages, tiers, stepCost, sent, engine }: InstanceSnapshot,
  role: InstanceRole,
  place: number,
): RecordedInstance {
  const named = { name: name === '' ? String(place) : name, role };
  if (pages.total === 0) return named;
  // The pages of a pool need not be a whole number of blocks.
  const pagesOfBlock = blocks === undefined || blocks.total === 0 ? 1 : Math.floor(pages.total / blocks.total);
  const { ssdReadBytes, ssdReadSeconds } = tiers?.moved ?? {};
  return {
    ...named,
    ...(engine && {
      ...{ engine: engine.kind, takesPriorities: engine.takesPriorities, engineBlockTokens: blocks?.tokens },
    }),
    // Engines have blocks of other sizes.
    blocks: blocks && Math.floor((blocks.total * blocks.tokens) / pageTokens),
    receiveBlocks: receivePages && Math.floor(receivePages.total / pagesOfBlock),
    hostBlocks: tiers?.host.capacity,
    ssdBlocks: tiers?.ssd.capacity,
    stepCost,
    bytesPerSecond: rateOf(sent?.bytes, sent?.copySeconds),
    ssdBytesPerSecond: rateOf(ssdReadBytes, ssdReadSeconds),
  };
}

function rateOf(bytes = 0, seconds = 0): number | undefined {
  return bytes >= sampleBytesMin && seconds > 0 ? Math.round(bytes / seconds) : undefined;
}
