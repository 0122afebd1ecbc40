// When a step ends whose layers each wait for their keys and values, which arrive one layer after the other.

/** A step that has its rows computed in `computeUs`, layer by layer. Times in microseconds by one clock. */
export interface LayeredStep {
  readonly startedUs: number;
  readonly computeUs: number;
  readonly layers: number;
}

/**
 * Layer l (from 0) is computed once all before it are and its keys and values are here, a share of 1/layers of what comes evenly from `beganUs`
 * until `endedUs`: the latest of `arrival(l) + (layers - l) computeUs / layers`. That is linear in l, so that the first or the last layer says
 * when, or nobody has to wait.
 */
export function behindLayersUs(
  { startedUs, computeUs, layers }: LayeredStep,
  arrival: { readonly beganUs: number; readonly endedUs: number },
): number {
  const first = arrival.beganUs + (arrival.endedUs - arrival.beganUs) / layers + computeUs;
  const last = arrival.endedUs + computeUs / layers;
  return Math.max(startedUs + computeUs, Math.ceil(first), Math.ceil(last));
}
