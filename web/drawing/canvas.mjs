// Canvases in the resolution of the screen, with the colours of the theme.
import { colour } from './format.mjs';

const names = ['ground', 'card', 'line', 'grid', 'ink', 'soft', 'blue', 'amber', 'green', 'red', 'violet'];

/** The colours of the theme, read once for each drawing. */
export function palette() {
  return Object.fromEntries(names.map((name) => [name, colour(name)]));
}

/** A context of the canvas in CSS pixels, over its full width. */
export function contextOf(canvas, height) {
  const [width, ratio] = [canvas.clientWidth, devicePixelRatio];
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return { context, width };
}

/** Text cut to a width. */
export function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
}

/** Round distances between ticks, so that at least three and at most `most` fit into `span`. */
export function tickStep(span, most) {
  const least = span / Math.max(3, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((value) => value >= least) ?? least;
  return span / step < 2 ? step / 2 : step;
}

/** A colour between two others, such as '#1a2b3c'; share of the first. */
export function mixed(one, other, share) {
  const [a, b] = [one, other].map((hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16)));
  return `rgb(${a.map((part, i) => Math.round(part * share + b[i] * (1 - share))).join(' ')})`;
}
