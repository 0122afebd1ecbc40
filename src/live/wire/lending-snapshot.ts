// What an instance tells of memory that it lends and borrows, as it comes over the wire.
import { z } from 'zod';

const count = z.number().int().min(0);
const figure = z.number().min(0);

export const lendingSnapshot = z.strictObject({
  lentBlocks: count,
  borrowedBlocks: count,
  remoteBlocks: count,
  ownHostBlocks: count,
  movedBlocks: count,
  hostBlocks: count,
  vacatedBlocks: count,
  homeBlocks: count,
  lostBlocks: count,
  stalls: count,
  stallUs: figure,
  links: z.array(z.strictObject({ borrowedBlocks: count, movedBytes: count })).max(4096),
  guests: z.strictObject({
    queries: count,
    rows: count,
    refused: count,
    seconds: figure,
    bytesIn: count,
    bytesOut: count,
  }),
  remote: z.strictObject({ queries: count, bytesOut: count, bytesIn: count, waitSeconds: figure }),
  isManager: z.boolean().exactOptional(),
});
