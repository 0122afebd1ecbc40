// How options are read from the text of a flag or a value of YAML.
import { z } from 'zod';

/** From a flag's text or a YAML number; an empty text is no zero. */
export const numeric = <T extends z.ZodType<unknown, number>>(schema: T) =>
  z.union([z.number(), z.string().trim().min(1).transform(Number)], 'expected a number').pipe(schema);

/** A mapping, or the text that a flag gives for it. */
export const fromText = (read: (text: string) => unknown) =>
  z.unknown().transform((value) => (typeof value === 'string' ? read(value) : value));

export const logLevels = ['debug', 'info', 'warn', 'error', 'silent'] as const;
export const logLevel = z.enum(logLevels).default('info');
export const logFormats = ['text', 'json'] as const;
/** Undefined: by whether stderr is a terminal. */
export const logFormat = z.enum(logFormats).optional();
