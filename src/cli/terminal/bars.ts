// Bars and sparklines of Unicode blocks.

const eighths = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
const heights = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/** A share from 0 to 1 as a bar of `cells` characters. */
export function bar(share: number, cells = 20): string {
  const filled = Math.round(Math.min(1, Math.max(0, share)) * cells * 8);
  const whole = Math.floor(filled / 8);
  const part = filled % 8;
  return `${'█'.repeat(whole)}${part === 0 ? '' : eighths[part]}`.padEnd(cells, '░');
}

/** A character for each value, as high as its share of the largest one. */
export function sparkline(values: readonly number[]): string {
  const most = Math.max(...values, 0);
  return values
    .map((value) => (value <= 0 || most === 0 ? ' ' : heights[Math.min(7, Math.floor((value / most) * 7.999))]))
    .join('');
}
