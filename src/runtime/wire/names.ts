// Names of processes, sessions and groups in messages between processes.
import { z } from 'zod';
import type { GroupPrefix } from '../../core/protocol/events.ts';
import type { PinId, RequestId } from '../../core/protocol/ids.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';

const count = z.number().int().min(0);
export const name = z.string().regex(/^[\w-]{1,64}$/);
export const sessionName = z.object({ name, incarnation: count, session: count });
export const namedGroup = z
  .object({
    members: z.array(sessionName).min(2).max(64),
    layers: z.array(count.min(1)).optional(),
    chunkTokens: count.min(1).max(batchLimits.tokensMax),
    prefix: z
      .object({
        blocks: count,
        patienceUs: z.number().min(0),
        of: sessionName.omit({ session: true }).optional(),
      })
      .optional(),
  })
  .refine(({ members, layers }) => layers === undefined || layers.length === members.length, {
    path: ['layers'],
    message: 'a group has one entry for each member',
  });

/** One incarnation of a process, and a gateway's session with it. */
export interface SessionName {
  readonly name: string;
  readonly incarnation: number;
  readonly session: number;
}

/** The members of a group in the order of their layers, each by the session of the request's gateway with it. */
export interface NamedGroup {
  readonly members: readonly SessionName[];
  /** (members): number of layers of each; undefined: equal shares. */
  readonly layers: readonly number[] | undefined;
  readonly chunkTokens: number;
  /** The prefix to reuse; `of`: an incarnation of an instance that has it. */
  readonly prefix:
    | (Omit<GroupPrefix, 'from'> & { readonly of: Pick<SessionName, 'name' | 'incarnation'> | undefined })
    | undefined;
}

/** Id of a gateway's request or pin at an instance: unique across gateways and sessions. @param gateway the gateway and its session with the instance */
export function requestName({ name, incarnation, session }: SessionName, id: RequestId | PinId): string {
  return `${name}.${incarnation}.${session}/${id}`;
}
