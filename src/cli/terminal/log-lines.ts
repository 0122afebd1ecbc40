// Log lines for people: time, level, message and key figures on one line.
import { readable } from './fields.ts';

const levels: Readonly<Record<number, string>> = {
  10: 'TRACE',
  20: 'DEBUG',
  30: 'INFO',
  40: 'WARN',
  50: 'ERROR',
  60: 'FATAL',
};
const colors: Readonly<Record<number, string>> = { 20: '90', 40: '33', 50: '31', 60: '31' };
/** Fields that are not printed as figures: they have their own place on the line, or are equal on every line. */
const hiddenFields: ReadonlySet<string> = new Set(['level', 'time', 'pid', 'hostname', 'msg', 'err', 'instance']);

/** One JSON log line as text. @param hasColors level names are coloured */
export function humanLine(json: string, hasColors: boolean): string {
  const entry = JSON.parse(json) as Record<string, unknown>;
  const level = Number(entry.level);
  const name = (levels[level] ?? String(level)).padEnd(5);
  const color = hasColors ? colors[level] : undefined;
  const shown = color === undefined ? name : `\x1b[${color}m${name}\x1b[0m`;
  const instance = entry.instance === undefined ? '' : `[${entry.instance}] `;
  const figures = Object.entries(entry).flatMap(([field, value]) =>
    hiddenFields.has(field) ? [] : [figure(field, value)],
  );
  const { stack, message } = (entry.err ?? {}) as { readonly stack?: string; readonly message?: string };
  const error = entry.err === undefined ? '' : `\n${indented(stack ?? message ?? JSON.stringify(entry.err))}`;
  const tail = figures.length === 0 ? '' : `  ${figures.join(' ')}`;
  return `${clock(Number(entry.time))} ${shown} ${instance}${String(entry.msg ?? '')}${tail}${error}\n`;
}

/** `durationMs: 12.3` reads `duration=12.3ms`. */
function figure(field: string, value: unknown): string {
  if (typeof value !== 'number') return `${field}=${typeof value === 'object' ? JSON.stringify(value) : value}`;
  if (field === 'ms') return `time=${readable(value)}ms`;
  const [, name = field, unit = ''] = /^(.+)(Ms|Us)$/.exec(field) ?? [];
  return `${name}=${unit === '' ? value : `${readable(value)}${unit.toLowerCase()}`}`;
}

/** Local time of day: '14:03:09.512'. */
function clock(ms: number): string {
  const at = new Date(ms);
  const two = (part: number) => String(part).padStart(2, '0');
  const thousandths = String(at.getMilliseconds()).padStart(3, '0');
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${thousandths}`;
}

function indented(text: string): string {
  return text.replaceAll(/^/gm, '    ');
}
