// How gateways and instances in different processes name one another.
import { z } from 'zod';
import type { GroupPrefix } from '../../core/protocol/events.ts';
import type { PinId, RequestId } from '../../core/protocol/ids.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';

const count = z.number().int().min(0);
export const name = z.string().regex(/^[\w-]{1,64}$/);
export const sessionName = z.strictObject({ name, incarnation: count, session: count });
export const namedGroup = z
  .strictObject({
    members: z.array(sessionName).min(2).max(64),
    layers: z.array(count.min(1)).optional(),
    chunkTokens: count.min(1).max(batchLimits.tokensMax),
    prefix: z
      .strictObject({
        blocks: count,
        patienceUs: z.number().min(0),
        of: sessionName.omit({ session: true }).optional(),
      })
      .optional(),
  })
  .refine(({ members, layers }) => layers === undefined || layers.length === members.length, {
    path: ['layers'],
    message: 'a group has not as many as members',
  });

/** One start of a process, and a gateway's session with it. */
export interface SessionName {
  readonly name: string;
  readonly incarnation: number;
  readonly session: number;
}

/** Who computes a prompt together, in the order of their layers: each by the session that the request's gateway has with it. */
export interface NamedGroup {
  readonly members: readonly SessionName[];
  /** (members): how many layers each runs; undefined: as many. */
  readonly layers: readonly number[] | undefined;
  readonly chunkTokens: number;
  /** Behind which they compute; `of` a start of an instance that has it. */
  readonly prefix:
    | (Omit<GroupPrefix, 'from'> & { readonly of: Pick<SessionName, 'name' | 'incarnation'> | undefined })
    | undefined;
}

/** The id at an instance of a gateway's request or pin: unique across gateways and sessions. @param gateway the gateway and its session with the instance */
export function requestName({ name, incarnation, session }: SessionName, id: RequestId | PinId): string {
  return `${name}.${incarnation}.${session}/${id}`;
}
