// Formats a UTC time as strftime does, without a clock or a time zone.

const months = 'January February March April May June July August September October November December'.split(' ');
const weekdays = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ');
const dayMs = 86_400_000;

interface Moment {
  readonly year: number;
  readonly month: number;
  readonly day: number;
  readonly weekday: number;
  readonly dayOfYear: number;
  readonly hour: number;
  readonly minute: number;
  readonly second: number;
  readonly micros: number;
}

const isLeap = (year: number) => (year % 4 === 0 && year % 100 !== 0) || year % 400 === 0;

function monthLengths(year: number): readonly number[] {
  return [31, isLeap(year) ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
}

function momentOf(timeMs: number): Moment {
  const days = Math.floor(timeMs / dayMs);
  const ms = timeMs - days * dayMs;
  // Whole cycles of 400 years (146,097 days) first keep the loop short for any time.
  const cycles = Math.floor(days / 146_097);
  let year = 1970 + cycles * 400;
  let dayOfYear = days - cycles * 146_097;
  for (let length = isLeap(year) ? 366 : 365; dayOfYear >= length; length = isLeap(year) ? 366 : 365) {
    dayOfYear -= length;
    year++;
  }
  let month = 0;
  let day = dayOfYear;
  for (const length of monthLengths(year)) {
    if (day < length) break;
    day -= length;
    month++;
  }
  return {
    year,
    month,
    day: day + 1,
    weekday: (((days + 4) % 7) + 7) % 7,
    dayOfYear: dayOfYear + 1,
    hour: Math.floor(ms / 3_600_000),
    minute: Math.floor(ms / 60_000) % 60,
    second: Math.floor(ms / 1000) % 60,
    micros: Math.floor((ms % 1000) * 1000),
  };
}

const pad = (value: number, width: number) => String(value).padStart(width, '0');

const directives: Readonly<Record<string, (at: Moment) => string>> = {
  Y: (at) => pad(at.year, 4),
  y: (at) => pad(at.year % 100, 2),
  m: (at) => pad(at.month + 1, 2),
  B: (at) => months[at.month] as string,
  b: (at) => (months[at.month] as string).slice(0, 3),
  d: (at) => pad(at.day, 2),
  e: (at) => String(at.day).padStart(2, ' '),
  j: (at) => pad(at.dayOfYear, 3),
  A: (at) => weekdays[at.weekday] as string,
  a: (at) => (weekdays[at.weekday] as string).slice(0, 3),
  w: (at) => String(at.weekday),
  H: (at) => pad(at.hour, 2),
  I: (at) => pad(at.hour % 12 === 0 ? 12 : at.hour % 12, 2),
  p: (at) => (at.hour < 12 ? 'AM' : 'PM'),
  M: (at) => pad(at.minute, 2),
  S: (at) => pad(at.second, 2),
  f: (at) => pad(at.micros, 6),
  F: (at) => `${pad(at.year, 4)}-${pad(at.month + 1, 2)}-${pad(at.day, 2)}`,
  T: (at) => `${pad(at.hour, 2)}:${pad(at.minute, 2)}:${pad(at.second, 2)}`,
  z: () => '+0000',
  Z: () => 'UTC',
  '%': () => '%',
};

/** strftime in UTC. `%-d` and similar drop the padding; an unknown directive stays unchanged. */
export function formatTime(timeMs: number, format: string): string {
  const at = momentOf(timeMs);
  return format.replace(/%(-?)([A-Za-z%])/g, (whole, bare: string, name: string) => {
    const text = directives[name]?.(at);
    if (text === undefined) return whole;
    return bare === '-' ? text.replace(/^[0 ]+(?=.)/, '') : text;
  });
}
