// What requests are called at instances of other processes: gateways' own names may be the same.
import type { RequestId } from '../../core/protocol/ports.ts';
import type { SessionName } from '../wire/names.ts';

/** @param gateway whose it is, and its session with the instance */
export function nameAt({ name, incarnation, session }: SessionName, id: RequestId): RequestId {
  return `${name}.${incarnation}.${session}/${id}`;
}
