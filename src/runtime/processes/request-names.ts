// What requests are called at instances of other processes: gateways' own names may be the same.
import type { PinId, RequestId } from '../../core/protocol/ids.ts';
import type { SessionName } from '../wire/names.ts';

/** @param gateway whose it is, and its session with the instance */
export function requestName({ name, incarnation, session }: SessionName, id: RequestId | PinId): string {
  return `${name}.${incarnation}.${session}/${id}`;
}
