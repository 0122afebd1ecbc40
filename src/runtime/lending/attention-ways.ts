// Decides for each live step whether its rows travel to the keys at creditors, or the keys to the rows.

import { queryRowBytes, remoteAttentionUs } from '../../core/cost/dist-attention.ts';
import type { LinkFigures } from '../../core/cost/links/link-distance.ts';
import { type RemoteAttentionKind, type RemoteSource, travellingKeyBytes } from '../../core/cost/remote-way.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { RemoteWork } from '../../core/protocol/lending-effects.ts';
import type { StepShape } from '../../core/protocol/step-shape.ts';
import type { Step } from '../../util/step.ts';

type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;

export interface AttentionWaysOptions {
  readonly kind: RemoteAttentionKind;
  readonly heads: { readonly layers: number; readonly heads: number; readonly headDim: number };
  readonly kvBytesPerToken: number;
  /** Opens a reader of the pages that a server of this process lends, or that of a client. */
  openReader(server: number): number;
  freeReader(reader: number): void;
}

export class AttentionWays {
  readonly #options: AttentionWaysOptions;
  readonly #instance: InstanceIndex;
  readonly #linkTo: (creditor: InstanceIndex) => LinkFigures;
  /** By creditor: its server, or the client of it in another process, and the reader of its pages. */
  readonly #readers = new Map<InstanceIndex, { readonly server: number; readonly reader: number }>();
  /** Bytes of keys and values that steps have read at creditors. */
  keyBytes = 0;

  constructor(
    options: AttentionWaysOptions,
    instance: InstanceIndex,
    linkTo: (creditor: InstanceIndex) => LinkFigures,
  ) {
    this.#options = options;
    this.#instance = instance;
    this.#linkTo = linkTo;
  }

  /** This instance has the server of a creditor, or a client of it. */
  connected(creditor: InstanceIndex, server: number): void {
    const known = this.#readers.get(creditor);
    if (this.#options.kind === 'dist' || known?.server === server) return;
    if (known !== undefined) this.#options.freeReader(known.reader);
    this.#readers.set(creditor, { server, reader: this.#options.openReader(server) });
  }

  /**
   * The plan of a step, with readers in place of servers if the keys travel to its rows. Rows travel if a server has been
   * replaced since the step was planned.
   * @param predictUs time of a step of this instance, and of its creditors, which run the same model
   */
  placed({ plan, shape, remote }: RunStep, predictUs: (shape: StepShape) => number): Step {
    const { kind, kvBytesPerToken } = this.#options;
    if (kind === 'dist' || remote === undefined || plan.remote.length === 0) return plan;
    const readers = new Map([...this.#readers.values()].map(({ server, reader }) => [server, reader]));
    const read = plan.remote.flatMap((keys) => {
      const reader = readers.get(keys.server);
      return reader === undefined ? [] : [{ ...keys, server: reader }];
    });
    if (read.length < plan.remote.length) return plan;
    const cost = { stepUs: predictUs, kvBytesPerToken };
    const sources = remote.map((work) => this.#sourceOf(work, cost));
    const keyBytes = travellingKeyBytes(kind, cost, shape, sources);
    if (keyBytes === 0) return plan;
    this.keyBytes += keyBytes;
    return { ...plan, remote: read };
  }

  /** Every creditor counts as busy: the bound of its loans holds. Host memory is read in place, as fast as device memory. */
  #sourceOf(work: RemoteWork, cost: { stepUs(shape: StepShape): number }): RemoteSource {
    const { creditor, remoteAttentionPermille: sharePermille } = work;
    if (creditor === this.#instance) return { work, link: undefined, workUs: 0, sharePermille, readUs: 0 };
    const { heads } = this.#options;
    const { roundTripUs, bytesPerSecond } = this.#linkTo(creditor);
    const link = {
      layers: heads.layers,
      rowBytes: queryRowBytes(heads),
      oneWayUs: roundTripUs / 2,
      bytesPerUs: bytesPerSecond / 1e6,
    };
    return { work, link, workUs: remoteAttentionUs(cost, work), sharePermille, readUs: 0 };
  }
}
