// Schemas that read a value from the text of a flag or from YAML.
import { z } from 'zod';

/** A number from the text of a flag or from YAML; empty text is an error. */
export const numeric = <T extends z.ZodType<unknown, number>>(schema: T) =>
  z.union([z.number(), z.string().trim().min(1).transform(Number)], 'expected a number').pipe(schema);

/** A mapping, or its text in a flag. */
export const fromText = (read: (text: string) => unknown) =>
  z.unknown().transform((value) => (typeof value === 'string' ? read(value) : value));

export const logLevels = ['debug', 'info', 'warn', 'error', 'silent'] as const;
export const logLevel = z.enum(logLevels).default('info');
export const logFormats = ['text', 'json'] as const;
/** Undefined: text on a terminal, else JSON. */
export const logFormat = z.enum(logFormats).optional();
