// What an instance tells of memory that it lends and borrows, as it comes over the wire.
import { z } from 'zod';

const count = z.number().int().min(0);
const figure = z.number().min(0);

const link = z.strictObject({
  peer: count,
  borrowedBlocks: count,
  movedBytes: count,
  refusals: count,
  queries: count,
  refusedQueries: count,
  queryBytes: count,
  partialBytes: count,
  transport: z.enum(['thread', 'shared', 'tcp']).exactOptional(),
});

export const lendingSnapshot = z.strictObject({
  lentBlocks: count,
  borrowedBlocks: count,
  remoteBlocks: count,
  keptBlocks: count,
  ownHostBlocks: count,
  movedBlocks: count,
  hostBlocks: count,
  vacatedBlocks: count,
  homeBlocks: count,
  lostBlocks: count,
  stalls: count,
  stallUs: figure,
  copiedBytes: count,
  earlyBytes: count,
  place: count,
  links: z.array(link).max(4096),
  guests: z.strictObject({
    queries: count,
    rows: count,
    refused: count,
    seconds: figure,
    restSeconds: figure,
    bytesIn: count,
    bytesOut: count,
  }),
  remote: z.strictObject({ queries: count, bytesOut: count, bytesIn: count, waitSeconds: figure }),
  isManager: z.boolean().exactOptional(),
});
