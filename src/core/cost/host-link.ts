// Time that KV transfers between device and host memory add to a concurrent step, with and without layer-wise
// transfers.
import type { PrefillPredictor } from './prefill.ts';

export interface HostLinkShape {
  /** Bandwidth of all devices of the instance together, for each direction. */
  readonly bytesPerSecond: number;
  readonly kvBytesPerToken: number;
  readonly layers: number;
  /**
   * True: each layer is loaded before it is required and stored once it is computed. False: all layers are loaded, then
   * computed, then stored.
   */
  readonly layerWise: boolean;
}

/**
 * Mooncake, section 5.2: a layer is loaded while earlier ones compute, and stored while later ones compute; the step
 * ends when all are stored. The three stages form a pipeline of equal layers: the time of one layer in each stage, and
 * of the others in the slowest stage.
 */
export class HostLink {
  readonly kvBytesPerToken: number;
  readonly #tokenUs: number;
  readonly #layers: number;

  constructor({ bytesPerSecond, kvBytesPerToken, layers, layerWise }: HostLinkShape) {
    this.kvBytesPerToken = kvBytesPerToken;
    this.#tokenUs = (kvBytesPerToken * 1e6) / bytesPerSecond;
    // Without layer-wise transfers, everything is one layer.
    this.#layers = layerWise ? layers : 1;
  }

  /** Time to move this many tokens over an idle link. */
  moveUs(tokens: number): number {
    return tokens * this.#tokenUs;
  }

  /** Time that loading and storing these tokens adds to `computeUs`. */
  exposedUs(computeUs: number, loadTokens: number, storeTokens: number): number {
    const loadUs = this.moveUs(loadTokens);
    const storeUs = this.moveUs(storeTokens);
    const longest = Math.max(computeUs, loadUs, storeUs);
    return longest + (loadUs + computeUs + storeUs - longest) / this.#layers - computeUs;
  }
}

/**
 * Prefill that loads cached tokens from host memory and stores new ones there. An upper bound: cached tokens may be in
 * device memory.
 */
export class HostPrefill implements PrefillPredictor {
  readonly #compute: PrefillPredictor;
  readonly #link: HostLink;

  constructor(compute: PrefillPredictor, link: HostLink) {
    this.#compute = compute;
    this.#link = link;
  }

  prefillUs(tokens: number, cachedTokens: number): number {
    const computeUs = this.#compute.prefillUs(tokens, cachedTokens);
    return computeUs + this.#link.exposedUs(computeUs, cachedTokens, tokens - cachedTokens);
  }
}
