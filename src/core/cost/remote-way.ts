// Whether the rows of a step travel to keys at creditors, or the keys to the rows: one rule, live and simulated.

import type { RemoteWork } from '../protocol/lending-effects.ts';
import type { StepShape } from '../protocol/step-shape.ts';
import {
  attentionUs,
  distributedUs,
  fetchesKeys,
  keysSent,
  partialsUs,
  type QueryLink,
  ringUs,
} from './dist-attention.ts';
import type { StepCostModel } from './roofline.ts';

/** Attention over borrowed memory: `dist` sends rows to keys, `ring` keys to rows, `auto` decides for each step. */
export type RemoteAttentionKind = 'auto' | 'dist' | 'ring';

/** What a step waits for: the keys that other instances attend to, and the time until the last partials or keys arrive. */
export interface RemoteWait {
  readonly keyRows: number;
  readonly decodeKeys: number;
  readonly remoteUs: number;
}

/** Attention over keys at one creditor, or in own host memory. */
export interface RemoteSource {
  readonly work: RemoteWork;
  /** Undefined: own host memory. */
  readonly link: QueryLink | undefined;
  /** Time that the creditor takes for the work alone. */
  readonly workUs: number;
  /** Share of the creditor's time that the work gets, in thousandths. */
  readonly sharePermille: number;
  /** Time to read the keys that are in host memory. */
  readonly readUs: number;
}

/** Rows travel to the keys. */
export function shipWait(sources: readonly RemoteSource[]): RemoteWait {
  const sentRows = sources.reduce((sum, { work }) => sum + work.rows, 0);
  let [keyRows, decodeKeys, remoteUs] = [0, 0, 0];
  for (const { work, link, workUs, sharePermille, readUs } of sources) {
    // Own host memory is read while the local attention runs, which attends to those keys too.
    if (link === undefined) {
      remoteUs = Math.max(remoteUs, readUs);
      continue;
    }
    keyRows += work.keyRows;
    decodeKeys += work.decodeKeys;
    remoteUs = Math.max(remoteUs, partialsUs(link, sentRows, workUs, sharePermille, readUs));
  }
  return { keyRows, decodeKeys, remoteUs };
}

/** The debtor computes all attention: the keys and values of all creditors share its NIC, and are read where they lie. */
export function fetchWait(sources: readonly RemoteSource[], bytes: number): RemoteWait {
  const timesUs = sources.map(({ link, readUs }) =>
    link === undefined ? readUs : Math.max(readUs, ringUs(link, bytes)),
  );
  return { keyRows: 0, decodeKeys: 0, remoteUs: Math.max(0, ...timesUs) };
}

/** Bytes of the keys and values that travel if the step computes all of its attention. */
function keyBytesOf(sources: readonly RemoteSource[], bytesPerToken: number): number {
  return sources.reduce((sum, { work, link }) => sum + (link === undefined ? 0 : keysSent(work)), 0) * bytesPerToken;
}

/** Bytes of the keys and values that travel to the rows of this step; 0: the rows travel. @param cost steps of the debtor */
export function travellingKeyBytes(
  kind: RemoteAttentionKind,
  cost: Pick<StepCostModel, 'stepUs' | 'kvBytesPerToken'>,
  shape: StepShape,
  sources: readonly RemoteSource[],
): number {
  if (kind === 'dist') return 0;
  const bytes = keyBytesOf(sources, cost.kvBytesPerToken);
  return bytes === 0 || kind === 'ring' || keysTravel(bytes, cost, shape, sources) ? bytes : 0;
}

/** True if a step to which the keys travel, of these bytes, is better than one with rows that travel. */
function keysTravel(
  bytes: number,
  cost: Pick<StepCostModel, 'stepUs'>,
  shape: StepShape,
  sources: readonly RemoteSource[],
): boolean {
  const stepUs = ({ keyRows, decodeKeys, remoteUs }: RemoteWait): number => {
    const home = { ...shape, keyRows: shape.keyRows - keyRows, decodeKeys: shape.decodeKeys - decodeKeys };
    return distributedUs(cost.stepUs(home), attentionUs(cost, home), remoteUs);
  };
  const rowBytes = sources.reduce((sum, { work, link }) => sum + work.rows * (link?.rowBytes ?? 0), 0);
  const shipped = { bytes: rowBytes, us: stepUs(shipWait(sources)) };
  return fetchesKeys(shipped, { bytes, us: stepUs(fetchWait(sources, bytes)) });
}
