// What moving keys and values between device and host memory adds to a step that computes meanwhile, layer by layer or not.
import type { PrefillPredictor } from './prefill.ts';

export interface HostLinkShape {
  /** Of all devices of the instance together, each direction. */
  readonly bytesPerSecond: number;
  readonly kvBytesPerToken: number;
  readonly layers: number;
  /** Layers are loaded before they are wanted and stored once they are computed; else all is loaded, then computed, then stored. */
  readonly layerWise: boolean;
}

/**
 * Mooncake, section 5.2: a layer is loaded while those before it compute, and stored while those behind it do; the step ends when all is
 * stored. Three stages with equal layers pass through them like through any pipeline: one layer of each, and the rest of the slowest.
 */
export class HostLink {
  readonly kvBytesPerToken: number;
  readonly #tokenUs: number;
  readonly #layers: number;

  constructor({ bytesPerSecond, kvBytesPerToken, layers, layerWise }: HostLinkShape) {
    this.kvBytesPerToken = kvBytesPerToken;
    this.#tokenUs = (kvBytesPerToken * 1e6) / bytesPerSecond;
    // All at once is one layer.
    this.#layers = layerWise ? layers : 1;
  }

  /** Of so many tokens, by nothing else held up. */
  moveUs(tokens: number): number {
    return tokens * this.#tokenUs;
  }

  /** What loading and storing so many tokens adds to `computeUs`. */
  exposedUs(computeUs: number, loadTokens: number, storeTokens: number): number {
    const loadUs = this.moveUs(loadTokens);
    const storeUs = this.moveUs(storeTokens);
    const longest = Math.max(computeUs, loadUs, storeUs);
    return longest + (loadUs + computeUs + storeUs - longest) / this.#layers - computeUs;
  }
}

/** Prefills whose cached tokens are loaded from host memory and whose new ones are stored there. Cached ones may be on the device: then it is less. */
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
