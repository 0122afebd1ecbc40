// What members of a group in different processes tell each other about a prompt that they compute together.
import { z } from 'zod';
import type { RequestId } from '../../core/protocol/ids.ts';
import type { GenerationRequest } from '../../core/protocol/ports.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';
import { reader, request } from './messages.ts';
import { type NamedGroup, namedGroup, type SessionName, sessionName } from './names.ts';

/** `id`: as whoever hears it calls the request. Numbers are those of `RowsWire`. */
export type PipelineWire =
  | {
      readonly kind: 'joinPipeline';
      readonly gateway: Pick<SessionName, 'name' | 'incarnation'>;
      readonly request: GenerationRequest;
      readonly group: NamedGroup;
      readonly index: number;
      readonly decodeAt: SessionName;
    }
  | { readonly kind: 'joinedPipeline'; readonly id: RequestId; readonly cachedTokens: number }
  | { readonly kind: 'declinePipeline' | 'leavePipeline'; readonly id: RequestId }
  | {
      readonly kind: 'rows';
      readonly number: number;
      readonly id: RequestId;
      readonly chunk: { readonly from: number; readonly tokens: number; readonly cachedTokens: number };
      readonly landing: ReceiveBufferHandle | undefined;
    }
  | { readonly kind: 'rowsLand'; readonly number: number | undefined; readonly landing: ReceiveBufferHandle }
  | { readonly kind: 'rowsUnwanted'; readonly number: number };

const { tokensMax } = batchLimits;
const count = z.number().int().min(0);
const id = z.string().min(1).max(1024);
const landing = z.string().regex(/^[^/]{1,255}:\d{1,5}\/\d{1,10}\/[0-9a-f]{16}\/\d{1,9}$/, 'it is no landing');
const chunk = z
  .strictObject({ from: count, tokens: count, cachedTokens: count })
  .refine(({ from, tokens }) => from < tokens && tokens - from <= tokensMax, 'it is no chunk');

const stage = z.discriminatedUnion('kind', [
  z
    .strictObject({
      kind: z.literal('joinPipeline'),
      gateway: sessionName.omit({ session: true }),
      request,
      group: namedGroup,
      index: count.min(1),
      decodeAt: sessionName,
    })
    .refine(({ group, index }) => index < group.members.length, { path: ['index'], message: 'nobody has that place' }),
  z.strictObject({ kind: z.literal('joinedPipeline'), id, cachedTokens: count }),
  z.strictObject({ kind: z.enum(['declinePipeline', 'leavePipeline']), id }),
  z.strictObject({ kind: z.literal('rows'), number: count, id, chunk, landing: landing.optional() }),
  z.strictObject({ kind: z.literal('rowsLand'), number: count.optional(), landing }),
  z.strictObject({ kind: z.literal('rowsUnwanted'), number: count }),
]);

/** @throws Error that names the field at fault */
export const readPipelineWire = reader<PipelineWire>('what members of a group say', stage);
