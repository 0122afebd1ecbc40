// Errors between this process and the model hub: one-line messages with a kind that callers can act on.
import { oneLine } from '../../util/one-line.ts';

/**
 * `unreachable`: no network, or repeated server failures. `refused`: missing rights. `missing`: no such repository,
 * revision or file. `disk`: no space. `corrupt`: bytes differ from the listing. `busy`: locked by another process.
 * `interrupted`: aborted.
 */
export type HubErrorKind = 'unreachable' | 'refused' | 'missing' | 'disk' | 'corrupt' | 'busy' | 'interrupted';

export class HubError extends Error {
  readonly kind: HubErrorKind;

  /** @param message one line; unprintable characters are replaced */
  constructor(kind: HubErrorKind, message: string) {
    super(oneLine(message, 2000));
    this.name = 'HubError';
    this.kind = kind;
  }
}

/** Code of a system error, also when fetch wraps it. */
export function systemCode(error: unknown): string | undefined {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if ('code' in cause && typeof cause.code === 'string') return cause.code;
  }
  return undefined;
}
