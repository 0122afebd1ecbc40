// Row-wise ops of the reference backend: norms, activations, adds, soft-capping.
import type { Activation } from '../../util/model-config.ts';
import { finishRow, type RowBuffer, rowOf } from './buffers.ts';

export interface NormTask {
  readonly style: 'rms' | 'layer';
  readonly x: RowBuffer;
  readonly residual: RowBuffer | undefined;
  readonly gain: Float32Array;
  readonly bias: Float32Array | undefined;
  readonly eps: number;
  readonly out: RowBuffer;
}

/** With `residual`: residual += x, then out = norm(residual) * gain + bias. */
export function runNorm({ style, x, residual, gain, bias, eps, out }: NormTask, rows: number): void {
  if (residual !== undefined) runAdd(x, residual, rows);
  for (let row = 0; row < rows; row++) {
    const values = rowOf(residual ?? x, row);
    const mean = style === 'rms' ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
    const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    const inverse = 1 / Math.sqrt(squares / values.length + eps);
    const result = rowOf(out, row);
    for (let i = 0; i < values.length; i++) result[i] = (values[i] - mean) * inverse * gain[i] + (bias?.[i] ?? 0);
    finishRow(out, row);
  }
}

/** activation(gate) * up of rows gate | up. */
export function runGlu(activation: Activation, x: RowBuffer, out: RowBuffer, rows: number): void {
  const activate = activations[activation];
  for (let row = 0; row < rows; row++) {
    const values = rowOf(x, row);
    const result = rowOf(out, row);
    for (let i = 0; i < out.columns; i++) result[i] = activate(values[i]) * values[out.columns + i];
    finishRow(out, row);
  }
}

export function runActivate(activation: Activation, x: RowBuffer, out: RowBuffer, rows: number): void {
  const activate = activations[activation];
  for (let row = 0; row < rows; row++) {
    const values = rowOf(x, row);
    const result = rowOf(out, row);
    for (let i = 0; i < out.columns; i++) result[i] = activate(values[i]);
    finishRow(out, row);
  }
}

/** residual += x */
export function runAdd(x: RowBuffer, residual: RowBuffer, rows: number): void {
  for (let i = 0; i < rows * x.columns; i++) residual.values[i] = residual.values[i] + x.values[i];
}

export function runSoftcap(cap: number, x: RowBuffer, rows: number): void {
  for (let i = 0; i < rows * x.columns; i++) x.values[i] = softcap(cap, x.values[i]);
}

export function softcap(cap: number, value: number): number {
  return cap * Math.tanh(value / cap);
}

const activations: Record<Activation, (x: number) => number> = {
  silu: (x) => x / (1 + Math.exp(-x)),
  gelu: (x) => (x / 2) * erfc(-x / Math.SQRT2),
  // Equals x / 2 (1 + tanh(u)), without the cancellation of that form where the tanh is near -1.
  gelu_tanh: (x) => x / (1 + Math.exp(-2 * Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(x, 0),
};

/** From this x on erfc uses its continued fraction, below it 1 - erf(x). Each loses fewer than three digits there. */
const tailFrom = 1.5;
/** Terms of the continued fraction; from `tailFrom` on, further terms change no digit. */
const tailTerms = 80;

/** 1 - erf(x), relative error under 1e-13 wherever it is above 1e-300. */
function erfc(x: number): number {
  if (x < tailFrom) return 1 - erf(x);
  let fraction = x;
  for (let n = tailTerms; n > 0; n--) fraction = x + n / 2 / fraction;
  return Math.exp(-x * x) / (Math.sqrt(Math.PI) * fraction);
}

/**
 * Error function to an absolute 1e-15: 2 / sqrt(pi) exp(-x^2) (x + 2 x^3 / 3 + 4 x^5 / 15 + ...); its terms never
 * cancel.
 */
function erf(x: number): number {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}
