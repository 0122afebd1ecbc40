// What `serve` and `join` write down: JSON lines on stderr, one for each thing that happened.
import { type Logger, pino } from 'pino';
import type { z } from 'zod';
import type { logLevel } from '../../options/schema-parts.ts';

export interface ServerLog {
  readonly logger: Logger;
  /** What instances, links and tiers have to say. */
  readonly log: (message: string) => void;
}

/** @param about in every line */
export function openLog(level: z.infer<typeof logLevel>, about: Readonly<Record<string, string>> = {}): ServerLog {
  const logger = pino({ level }, pino.destination({ dest: 2, sync: false })).child(about);
  return { logger, log: (message) => logger.info(message) };
}
