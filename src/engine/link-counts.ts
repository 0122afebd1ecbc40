// Traffic with an attention worker over several links, one after another.
import type { WorkerLinkCounts } from '../util/counts.ts';

export const noLinkCounts: WorkerLinkCounts = {
  calls: 0,
  bytesOut: 0,
  bytesIn: 0,
  waitSeconds: 0,
  earlySeconds: 0,
  lateSeconds: 0,
};

export function sumOfLinkCounts(a: WorkerLinkCounts, b: WorkerLinkCounts): WorkerLinkCounts {
  return {
    calls: a.calls + b.calls,
    bytesOut: a.bytesOut + b.bytesOut,
    bytesIn: a.bytesIn + b.bytesIn,
    waitSeconds: a.waitSeconds + b.waitSeconds,
    earlySeconds: a.earlySeconds + b.earlySeconds,
    lateSeconds: a.lateSeconds + b.lateSeconds,
  };
}
