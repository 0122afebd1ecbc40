// Validation of the counters and gauges of an instance, lending included.
import { z } from 'zod';
import { engineKinds } from '../../core/protocol/instance-report.ts';
import { blockAgeBoundsS, pageAgeBoundsS } from '../../core/protocol/ports.ts';

/** Owners of pages in one snapshot. */
const ownersMax = 64;

const count = z.number().int().min(0);
const figure = z.number().min(0);

const tier = z.object({ blocks: count, capacity: count });
const link = z.object({
  to: count,
  name: z.string().exactOptional(),
  bytes: count,
  backlogBytes: count,
  bytesPerSecond: count.exactOptional(),
  transport: z.enum(['thread', 'shared', 'tcp', 'rdma']).exactOptional(),
});
const lendingLink = z.object({
  peer: count,
  borrowedBlocks: count,
  movedBytes: count,
  refusals: count,
  queries: count,
  refusedQueries: count,
  queryBytes: count,
  partialBytes: count,
  roundTripUs: count.exactOptional(),
  bytesPerSecond: count.exactOptional(),
  distance: z.number().int().exactOptional(),
  transport: z.enum(['thread', 'shared', 'tcp', 'rdma']).exactOptional(),
});

const lendingSnapshot = z.object({
  lentBlocks: count,
  borrowedBlocks: count,
  remoteBlocks: count,
  remoteCachedBlocks: count,
  ownHostBlocks: count,
  movedBlocks: count,
  hostBlocks: count,
  vacatedBlocks: count,
  settlements: count.exactOptional(),
  settledBlocks: count,
  lostBlocks: count,
  stalls: count,
  stallUs: figure,
  copiedBytes: count,
  overlappedBytes: count,
  lenderNumber: count,
  links: z.array(lendingLink).max(4096),
  servedAttention: z.object({
    queries: count,
    rows: count,
    refused: count,
    seconds: figure,
    restSeconds: figure,
    bytesIn: count,
    bytesOut: count,
  }),
  remoteAttention: z.object({
    queries: count,
    bytesOut: count,
    bytesIn: count,
    waitSeconds: figure,
    keyBytes: figure.optional(),
  }),
  isManager: z.boolean().exactOptional(),
});

const attentionWorker = z.object({
  ready: z.boolean(),
  losses: count,
  sequences: count.exactOptional(),
  heldTokens: count.exactOptional(),
  calls: count.exactOptional(),
  bytesOut: count.exactOptional(),
  bytesIn: count.exactOptional(),
  waitSeconds: figure.exactOptional(),
  earlySeconds: figure.exactOptional(),
  lateSeconds: figure.exactOptional(),
  pulledPages: count.exactOptional(),
  pulledBytes: count.exactOptional(),
});

const ages = z.object({
  counts: z.array(count).length(blockAgeBoundsS.length + 1),
  sum: figure,
});

export const instanceSnapshot = z.object({
  ready: z.boolean(),
  waiting: count,
  running: count,
  pages: z.object({ total: count, used: count, cached: count, free: count }),
  promptTokens: count,
  cachedTokens: count,
  computedPromptTokens: count,
  generatedTokens: count,
  preemptions: count,
  steps: count,
  stepMsTotal: figure,
  evictedBlocks: count,
  blockAges: z.object({ lifetime: ages, reuseGap: ages }).exactOptional(),
  memory: z
    .object({
      pinned: count,
      lent: count,
      owners: z.array(z.tuple([z.string(), count])).max(ownersMax),
      pagesByAge: z.array(count).length(pageAgeBoundsS.length + 1),
    })
    .exactOptional(),
  blocks: z.object({ total: count, tokens: count }).exactOptional(),
  engine: z.object({ kind: z.enum(engineKinds), takesPriorities: z.boolean() }).exactOptional(),
  stepCost: z.array(figure).length(5).exactOptional(),
  servedAttentionPermille: count.max(999).exactOptional(),
  usedPageSeconds: figure,
  tiers: z
    .object({
      host: tier,
      ssd: tier,
      reads: z.object({ host: count, ssd: count, instance: count }),
      lostBlocks: count,
      moved: z
        .object({
          copiedBytes: count,
          storedEarlyBytes: count.exactOptional(),
          ssdReadBytes: count,
          ssdReadSeconds: figure,
          ssdWrittenBytes: count,
          badBlocks: count,
        })
        .optional(),
    })
    .optional(),
  sparse: z
    .object({
      sequences: count,
      slotTokens: count,
      slotPages: count,
      selections: count,
      promptTokens: count,
      keptTokens: count,
    })
    .optional(),
  store: z
    .object({ takenBlocks: count, sentBlocks: count, declinedOffers: count, takenBytes: count.optional() })
    .optional(),
  prefixCopies: z.object({ fetchedBlocks: count, proactiveBlocks: count }).optional(),
  receivePages: z.object({ total: count, free: count }).exactOptional(),
  lending: lendingSnapshot.optional(),
  attentionWorkers: z.array(attentionWorker).max(99).optional(),
  pipelineChunks: z.array(count).exactOptional(),
  links: z.array(link).exactOptional(),
  activationLinks: z.array(link).exactOptional(),
  sent: z
    .object({
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
