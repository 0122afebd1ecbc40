// The log of `serve` and `join` on stderr: readable lines on a terminal, JSON lines elsewhere.
import { type Logger, pino } from 'pino';
import type { ServeOptions } from '../../options/options.ts';
import { humanLine } from '../../terminal/log-lines.ts';

export interface ServerLog {
  readonly logger: Logger;
  /** Logs events of instances, links and tiers. */
  readonly log: (message: string) => void;
}

const stderr = 2;

/** @param about fields of every line */
export function openLog(
  { logLevel, logFormat }: Pick<ServeOptions, 'logLevel' | 'logFormat'>,
  about: Readonly<Record<string, string>> = {},
): ServerLog {
  const isTerminal = process.stderr.isTTY === true;
  const format = logFormat ?? (isTerminal ? 'text' : 'json');
  const hasColors = isTerminal && process.env.NO_COLOR === undefined;
  const json = pino.destination({ dest: stderr, sync: false });
  const text = { write: (line: string) => json.write(humanLine(line, hasColors)) };
  const logger = pino({ level: logLevel }, format === 'text' ? text : json).child(about);
  return { logger, log: (message) => logger.info(message) };
}
