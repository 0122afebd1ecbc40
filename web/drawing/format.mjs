// Formats numbers, times and colours for the report.

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const wash = (name, share) => `color-mix(in srgb, ${colour(name)} ${share}%, transparent)`;
export const round = (value, digits = 3) => Number(value.toPrecision(digits)).toLocaleString('en');
export const whole = (value) => Math.round(value).toLocaleString('en');
export const percent = (share) => `${round(100 * share)} %`;

export function compact(value) {
  for (const [unit, name] of [
    [1e12, 'T'],
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'k'],
  ])
    if (Math.abs(value) >= unit) return `${round(value / unit)}${name}`;
  return round(value);
}

export function latency(ms, digits = 3) {
  if (ms < 1) return `${round(ms * 1000, digits)} µs`;
  if (ms < 1000) return `${round(ms, digits)} ms`;
  return ms < 600_000 ? `${round(ms / 1000, digits)} s` : `${round(ms / 60_000, digits)} min`;
}

export function clock(seconds) {
  if (seconds < 60) return `${round(seconds)} s`;
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.round(seconds % 60)];
  if (hours === 0) return rest === 0 ? `${minutes} min` : `${minutes}:${String(rest).padStart(2, '0')}`;
  return minutes === 0 ? `${hours} h` : `${hours}:${String(minutes).padStart(2, '0')} h`;
}

export function duration(seconds) {
  if (seconds < 60) return `${round(seconds)} s`;
  return seconds < 7200 ? `${round(seconds / 60)} min` : `${round(seconds / 3600)} h`;
}

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export const sum = (values) => values.reduce((all, value) => all + value, 0);
export const mean = (values) => sum(values) / Math.max(1, values.length);
export const least = (values) => values.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
export const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
