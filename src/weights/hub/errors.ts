// What can go wrong between here and the model hub: one line each, and its kind for those who can go on without.
import { oneLine } from '../../util/one-line.ts';

/**
 * `unreachable`: no network, or a hub that stays broken; `refused`: rights are missing; `missing`: no such repository, revision or
 * file; `disk`: no room; `corrupt`: not the bytes that were promised; `busy`: another process holds it; `interrupted`: asked to stop.
 */
export type HubErrorKind = 'unreachable' | 'refused' | 'missing' | 'disk' | 'corrupt' | 'busy' | 'interrupted';

export class HubError extends Error {
  readonly kind: HubErrorKind;

  /** @param message one line; what came from outside is made printable */
  constructor(kind: HubErrorKind, message: string) {
    super(oneLine(message, 2000));
    this.name = 'HubError';
    this.kind = kind;
  }
}

/** Code of a system error, also of one that fetch wraps. */
export function systemCode(error: unknown): string | undefined {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if ('code' in cause && typeof cause.code === 'string') return cause.code;
  }
  return undefined;
}
