// Parts of SVG plots.

/** About five round numbers from 0 to `max`. */
export function ticks(max: number): readonly number[] {
  const raw = max / 5;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * magnitude).find((candidate) => candidate >= raw) ?? raw;
  return Array.from({ length: Math.floor(max / step) + 1 }, (_, i) => fixed(i * step, 6));
}

/** Rounded to so many digits behind the point. */
export function fixed(value: number, digits = 1): number {
  return Number(value.toFixed(digits));
}

export function escaped(text: string): string {
  return text.replace(/[<&]/g, (c) => (c === '<' ? '&lt;' : '&amp;'));
}

/** The document. @param title is shown by readers of the file */
export function svgDocument(width: number, height: number, title: string, parts: readonly string[]): string {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="12" fill="#24292f">`,
    `<title>${escaped(title)}</title>`,
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    ...parts,
    '</svg>',
    '',
  ].join('\n');
}
