// Messages between members of a pipeline group in different processes.
import { z } from 'zod';
import type { RequestId } from '../../core/protocol/ids.ts';
import type { GenerationRequest } from '../../core/protocol/ports.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';
import { reader, request } from './messages.ts';
import { type NamedGroup, namedGroup, type SessionName, sessionName } from './names.ts';

/** `id`: of the request at the receiver. Numbers are those of `ActivationWire`. */
export type PipelineWire =
  /** From the first member to another: requests its layers of the prompt. */
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
      readonly kind: 'activations';
      readonly number: number;
      readonly id: RequestId;
      readonly chunk: { readonly from: number; readonly tokens: number; readonly cachedTokens: number };
      readonly receiveBuffer: ReceiveBufferHandle | undefined;
    }
  | {
      readonly kind: 'activationsBuffer';
      readonly number: number | undefined;
      readonly receiveBuffer: ReceiveBufferHandle;
    }
  | { readonly kind: 'activationsCancelled'; readonly number: number };

const { tokensMax } = batchLimits;
const count = z.number().int().min(0);
const id = z.string().min(1).max(1024);
const receiveBuffer = z
  .string()
  .regex(/^[^/]{1,255}:\d{1,5}\/\d{1,10}\/[0-9a-f]{16}\/\d{1,9}$/, 'not a handle of a receive buffer');
const chunk = z
  .object({ from: count, tokens: count, cachedTokens: count })
  .refine(({ from, tokens }) => from < tokens && tokens - from <= tokensMax, 'not a chunk');

const wire = z.discriminatedUnion('kind', [
  z
    .object({
      kind: z.literal('joinPipeline'),
      gateway: sessionName.omit({ session: true }),
      request,
      group: namedGroup,
      index: count.min(1),
      decodeAt: sessionName,
    })
    .refine(({ group, index }) => index < group.members.length, { path: ['index'], message: 'not a member' }),
  z.object({ kind: z.literal('joinedPipeline'), id, cachedTokens: count }),
  z.object({ kind: z.enum(['declinePipeline', 'leavePipeline']), id }),
  z.object({ kind: z.literal('activations'), number: count, id, chunk, receiveBuffer: receiveBuffer.optional() }),
  z.object({ kind: z.literal('activationsBuffer'), number: count.optional(), receiveBuffer }),
  z.object({ kind: z.literal('activationsCancelled'), number: count }),
]);

/** @throws Error that names the invalid field */
export const readPipelineWire = reader<PipelineWire>('a message of a group', wire);
