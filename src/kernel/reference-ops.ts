// Row-wise ops of the reference backend: norm, gated activation.
import { finishRow, type RowBuffer, rowOf } from './reference-buffers.ts';

/** With `residual`: residual += x, then out = rmsNorm(residual) * gain. */
export function runNorm(
  x: RowBuffer,
  residual: RowBuffer | undefined,
  gain: Float32Array,
  eps: number,
  out: RowBuffer,
  rows: number,
): void {
  for (let row = 0; row < rows; row++) {
    const values = rowOf(residual ?? x, row);
    if (residual !== undefined) {
      const added = rowOf(x, row);
      for (let i = 0; i < values.length; i++) values[i] = values[i] + added[i];
    }
    let squares = 0;
    for (const value of values) squares += value * value;
    const inverse = 1 / Math.sqrt(squares / values.length + eps);
    const result = rowOf(out, row);
    for (let i = 0; i < values.length; i++) result[i] = values[i] * inverse * gain[i];
    finishRow(out, row);
  }
}

/** silu(gate) * up of rows gate | up. */
export function runGlu(x: RowBuffer, out: RowBuffer, rows: number): void {
  const columns = out.columns;
  for (let row = 0; row < rows; row++) {
    const values = rowOf(x, row);
    const result = rowOf(out, row);
    for (let i = 0; i < columns; i++) {
      const gate = values[i];
      result[i] = (gate / (1 + Math.exp(-gate))) * values[columns + i];
    }
    finishRow(out, row);
  }
}
