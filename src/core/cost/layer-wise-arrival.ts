// End of a step that waits in every layer for keys and values, which arrive layer by layer.

/** A step that computes its rows in `computeUs`, layer by layer. Times are in microseconds on one clock. */
export interface LayeredStep {
  readonly startedUs: number;
  readonly computeUs: number;
  readonly layers: number;
}

/**
 * Layer l (from 0) is computed after the layers before it, once its keys and values have arrived: 1/layers of a
 * transfer that runs evenly from `beganUs` to `endedUs`. The step ends at the latest `arrival(l) + (layers - l)
 * computeUs / layers`. That is linear in l, so the first or the last layer decides, or no layer waits.
 */
export function layerWiseEndUs(
  { startedUs, computeUs, layers }: LayeredStep,
  arrival: { readonly beganUs: number; readonly endedUs: number },
): number {
  const first = arrival.beganUs + (arrival.endedUs - arrival.beganUs) / layers + computeUs;
  const last = arrival.endedUs + computeUs / layers;
  return Math.max(startedUs + computeUs, Math.ceil(first), Math.ceil(last));
}
