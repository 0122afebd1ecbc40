// Counters and gauges of an instance, as they are checked where they arrive.
import { z } from 'zod';
import { lendingSnapshot } from './lending-snapshot.ts';

const count = z.number().int().min(0);
const figure = z.number().min(0);

const tier = z.strictObject({ blocks: count, capacity: count });
const link = z.strictObject({
  to: count,
  name: z.string().exactOptional(),
  bytes: count,
  backlogBytes: count,
  transport: z.enum(['thread', 'shared', 'tcp']).exactOptional(),
});
export const instanceSnapshot = z.strictObject({
  ready: z.boolean(),
  waiting: count,
  running: count,
  pages: z.strictObject({ total: count, used: count, cached: count, free: count }),
  promptTokens: count,
  cachedTokens: count,
  computedPromptTokens: count,
  generatedTokens: count,
  preemptions: count,
  steps: count,
  stepMsTotal: figure,
  evictedBlocks: count,
  stepCost: z.array(figure).length(5).exactOptional(),
  usedPageSeconds: figure,
  tiers: z
    .strictObject({
      host: tier,
      ssd: tier,
      reads: z.strictObject({ host: count, ssd: count, instance: count }),
      lostBlocks: count,
      moved: z
        .strictObject({
          copiedBytes: count,
          ssdReadBytes: count,
          ssdReadSeconds: figure,
          ssdWrittenBytes: count,
          badBlocks: count,
        })
        .optional(),
    })
    .optional(),
  store: z
    .strictObject({ takenBlocks: count, sentBlocks: count, declinedOffers: count, takenBytes: count.optional() })
    .optional(),
  landing: z.strictObject({ total: count, free: count }).exactOptional(),
  lending: lendingSnapshot.optional(),
  stageChunks: z.array(count).exactOptional(),
  links: z.array(link).exactOptional(),
  rowLinks: z.array(link).exactOptional(),
  sent: z
    .strictObject({
      pages: count,
      bytes: count,
      earlyBytes: count,
      streams: count,
      firstPages: count,
      copySeconds: figure,
      faults: count,
    })
    .exactOptional(),
});
